"""When it helps to hold more: when what arrives is not all alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.message import Lane
from headrace.consumer.fair_queue import Ticket
from headrace.consumer.variety import SAME_TIME_MS, Variety

NOW = 1_000_000


def matters(*tickets: Ticket, memory: int = 8) -> bool:
    variety = Variety(memory)
    for ticket in tickets:
        variety.arrived(ticket, Lane.BATCH, NOW)
    return variety.matters


def due(in_ms: int | None) -> Ticket:
    return Ticket(deadline_ms=None if in_ms is None else NOW + in_ms)


def test_nothing_seen_is_nothing_to_choose_from() -> None:
    assert not matters()


def test_requests_of_one_tenant_are_alike() -> None:
    assert not matters(Ticket("a"), Ticket("a"), Ticket("a"))


def test_two_tenants_of_one_lane_have_shares() -> None:
    assert matters(Ticket("a"), Ticket("b"))


def test_a_tenant_in_each_lane_is_no_choice_since_lanes_have_their_own_queues() -> None:
    variety = Variety(8)
    variety.arrived(Ticket("a"), Lane.BATCH, NOW)
    variety.arrived(Ticket("b"), Lane.STANDARD, NOW)
    variety.arrived(Ticket("a"), Lane.BATCH, NOW)
    assert not variety.matters


def test_deadlines_that_come_in_order_are_no_choice() -> None:
    assert not matters(due(60_000), due(60_000), due(61_000), due(None), due(None))
    assert not matters(due(60_000), due(60_000 - SAME_TIME_MS)), "as from two clocks"


def test_an_earlier_deadline_behind_a_later_one_matters() -> None:
    assert matters(due(60_000), due(60_000 - SAME_TIME_MS - 1))
    assert matters(due(None), due(60_000))


def test_one_whose_time_is_over_lets_others_go_first() -> None:
    assert matters(Ticket(late_at_ms=NOW))
    assert not matters(Ticket(late_at_ms=NOW + 1))


def test_what_was_long_ago_is_forgotten() -> None:
    mixed = [Ticket("b"), due(None), due(60_000), Ticket(late_at_ms=NOW)]
    assert matters(*mixed, *[Ticket()] * 7)
    assert not matters(*mixed, *[Ticket()] * 8)


@given(st.lists(st.tuples(st.sampled_from(Lane), st.sampled_from("ab")), max_size=30), st.integers(1, 6))
def test_tenants_matter_as_long_as_a_lane_of_the_latest_arrivals_has_two(
    arrivals: list[tuple[Lane, str]], memory: int
) -> None:
    variety = Variety(memory)
    for lane, tenant in arrivals:
        variety.arrived(Ticket(tenant), lane, NOW)
    latest = set(arrivals[-memory:])
    assert variety.matters == any({(lane, "a"), (lane, "b")} <= latest for lane in Lane)
