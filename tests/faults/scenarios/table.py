"""All scenarios, where they can be, and which of them `make test` runs."""

from __future__ import annotations

from tests.faults.scenarios.broker_away import (
    broker_killed,
    broker_restarted,
    disk_full,
    one_of_three_nodes_killed,
)
from tests.faults.scenarios.clients import published_twice, readers_slow_or_gone
from tests.faults.scenarios.deaths import (
    consumers_killed,
    consumers_killed_while_they_settle,
    engines_killed,
    everything_killed,
    gateways_killed,
)
from tests.faults.scenarios.ends import cancelled_and_expired, clock_jumps, clocks_disagree
from tests.faults.scenarios.engines import (
    DEADLY,
    deadly_body,
    engine_dies_by_itself,
    engine_hangs,
    engine_raises,
    poison,
)
from tests.faults.scenarios.network import network_silent, replies_cut, writes_reordered
from tests.faults.scenarios.ownership import consumers_come_and_go, consumers_frozen, static_twin
from tests.faults.scenarios.reordering import deliveries_reordered
from tests.faults.scenarios.scenario import Scenario
from tests.faults.scenarios.store import store_away
from tests.faults.scenarios.streams import streamed_replies
from tests.faults.scenarios.transactions import killed_inside_a_transaction

EVERYTHING_KILLED = Scenario("everything_killed", everything_killed, selected=())
THREE_NODES = Scenario(
    "one_of_three_nodes_killed", one_of_three_nodes_killed, ("kafka",), ("kafka",), breaks=True
)
SCENARIOS = (
    Scenario("consumers_killed", consumers_killed, selected=("redis",)),
    Scenario(
        "consumers_killed_while_they_settle",
        consumers_killed_while_they_settle,
        selected=(),
    ),
    Scenario("killed_inside_a_transaction", killed_inside_a_transaction, ("kafka",), ("kafka",)),
    Scenario("consumers_frozen", consumers_frozen),
    Scenario("engines_killed", engines_killed, selected=()),
    Scenario("gateways_killed", gateways_killed, selected=("redis",)),
    Scenario("consumers_come_and_go", consumers_come_and_go),
    Scenario("static_twin", static_twin, ("kafka",), ("kafka",), consumers=1),
    EVERYTHING_KILLED,
    Scenario("streamed_replies", streamed_replies),
    Scenario("broker_killed", broker_killed, breaks=True),
    Scenario("broker_restarted", broker_restarted, selected=(), breaks=True),
    Scenario("disk_full", disk_full, selected=("redis",), breaks=True),
    Scenario("replies_cut", replies_cut, proxied=True),
    Scenario("writes_reordered", writes_reordered, selected=(), proxied=True),
    Scenario("network_silent", network_silent, selected=(), proxied=True),
    Scenario("store_away", store_away),
    Scenario("published_twice", published_twice),
    Scenario("deliveries_reordered", deliveries_reordered, selected=("redis",)),
    Scenario("readers_slow_or_gone", readers_slow_or_gone, selected=()),
    Scenario("poison", poison, first_token_ms=2_000),
    Scenario("deadly_body", deadly_body, selected=("redis",), deadly=DEADLY),
    Scenario("engine_raises", engine_raises, selected=(), options=("--sim-fail-every", "7"), consumers=1),
    Scenario(
        *("engine_dies_by_itself", engine_dies_by_itself),
        selected=(),
        options=("--sim-crash-after-steps", "150"),
    ),
    Scenario("engine_hangs", engine_hangs, selected=()),
    Scenario("clock_jumps", clock_jumps, selected=(), clock_s=0),
    Scenario("clocks_disagree", clocks_disagree, selected=("redis",), consumers=1, clock_s=3600),
    Scenario("cancelled_and_expired", cancelled_and_expired, selected=("redis",)),
)
