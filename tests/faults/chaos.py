"""All faults, as often as you like: `python -m tests.faults.chaos [--seed N] [--kills N] [--only NAME]`.

Prints its seed first. All choices of a scenario follow from the seed (what the machine makes of them does
not: two runs differ in their timing). `--kills` says about how many processes the whole run kills.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.broker.embedded.kafka import EmbeddedUnusable
from tests.faults.brokers import Kafka, Kind, Valkey, running
from tests.faults.harness import run_scenario
from tests.faults.scenarios import SCENARIOS, THREE_NODES, Scenario

_KILLS_A_ROUND = 60  # of all scenarios on both brokers together
_SERVERS: dict[str, Callable[[Path], Valkey | Kafka]] = {
    "redis": Valkey,
    "kafka": Kafka,
    "kafka with three nodes": lambda folder: Kafka(folder, nodes=3),
}


def chosen(only: Sequence[str], kind: Kind) -> list[Scenario]:
    """The scenarios to run on a broker, in their order."""
    return [
        scenario for scenario in SCENARIOS if kind in scenario.brokers and (not only or scenario.name in only)
    ]


def plans(only: Sequence[str], brokers: Sequence[str]) -> Iterator[tuple[str, list[Scenario]]]:
    for kind in ("redis", "kafka"):
        if kind in brokers and (scenarios := chosen(only, kind)):
            yield kind, scenarios
    if "kafka" in brokers and (not only or THREE_NODES.name in only):
        yield "kafka with three nodes", [THREE_NODES]


def run_all(
    scenarios: Sequence[Scenario], make: Callable[[Path], Valkey | Kafka], seed: int, rounds: int
) -> int:
    """Returns how many failed; their folders are kept."""
    failures = 0
    with tempfile.TemporaryDirectory(prefix="headrace-chaos-") as data, running(make(Path(data))) as server:
        for scenario in scenarios:
            folder = Path(tempfile.mkdtemp(prefix=f"headrace-{scenario.name}-"))
            try:
                print(asyncio.run(run_scenario(scenario, server, folder, seed, rounds)), flush=True)
            except Exception:  # whatever it is, it belongs to this scenario, and the others go on
                failures += 1
                print(f"{scenario.name} on {server.kind} FAILED, see {folder}", flush=True)
                traceback.print_exc()
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kills", type=int, default=_KILLS_A_ROUND)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--broker", action="append", choices=("redis", "kafka"), default=[])
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    rounds = max(1, round(options.kills / _KILLS_A_ROUND))
    failures = 0
    for name, scenarios in plans(options.only, options.broker or ("redis", "kafka")):
        try:
            failures += run_all(scenarios, _SERVERS[name], seed, rounds)
        except EmbeddedUnusable as error:
            print(f"NOTHING RAN ON {name.upper()}: {error}", flush=True)
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
