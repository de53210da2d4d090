"""Who comes next of one lane."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumer.fair_queue import FairQueue, Ticket

NOW = 1000.0


def queue(weights: dict[str, float] | None = None, lead: float = 0.0) -> FairQueue:
    return FairQueue(weights or {}, lead)


def take_all(waiting: FairQueue, now_ms: float = NOW) -> list[Ticket]:
    taken: list[Ticket] = []
    while (ticket := waiting.take(now_ms)) is not None:
        taken.append(ticket)
    assert not len(waiting)
    return taken


def fill(waiting: FairQueue, *tickets: Ticket) -> list[Ticket]:
    for ticket in tickets:
        waiting.add(ticket)
    return list(tickets)


def test_without_more_to_say_first_come_first_served() -> None:
    waiting = queue()
    tickets = fill(waiting, *(Ticket() for _ in range(5)))
    assert take_all(waiting) == tickets


def test_the_earliest_deadline_goes_first_and_those_without_one_last() -> None:
    waiting = queue()
    late, none, soon = fill(waiting, Ticket(deadline_ms=9000), Ticket(), Ticket(deadline_ms=5000))
    assert take_all(waiting) == [soon, late, none]


def test_those_in_time_go_before_those_whose_queue_timeout_passed() -> None:
    waiting = queue()
    overdue, urgent_but_overdue, in_time = fill(
        waiting,
        Ticket(late_at_ms=900),
        Ticket(late_at_ms=1000, deadline_ms=1100),
        Ticket(late_at_ms=1001, deadline_ms=9000),
    )
    assert take_all(waiting) == [in_time, urgent_but_overdue, overdue]


def test_a_ticket_becomes_late_while_it_waits() -> None:
    waiting = queue()
    first, second = fill(waiting, Ticket(late_at_ms=1500), Ticket())
    assert waiting.take(1600) is second
    assert waiting.take(1600) is first


def test_tenants_alternate_whatever_the_length_of_their_lines() -> None:
    waiting = queue()
    fill(waiting, *(Ticket("many") for _ in range(50)))
    fill(waiting, *(Ticket("few") for _ in range(3)))
    served = [ticket.tenant for ticket in take_all(waiting)]
    assert served[:6].count("few") == 3


def test_a_tenant_with_twice_the_weight_gets_twice_as_much() -> None:
    waiting = queue({"gold": 2.0})
    fill(waiting, *(Ticket(tenant) for _ in range(30) for tenant in ("gold", "tin")))
    served = [ticket.tenant for ticket in take_all(waiting)][:30]
    assert (served.count("gold"), served.count("tin")) == (20, 10)


def test_shares_count_tokens_not_requests() -> None:
    waiting = queue()
    fill(waiting, *(Ticket("long", cost=10) for _ in range(10)), *(Ticket("short") for _ in range(90)))
    served = [ticket.tenant for ticket in take_all(waiting)][:22]
    assert served.count("long") in (2, 3)


def test_deadlines_win_no_more_than_the_lead() -> None:
    waiting = queue(lead=5)
    fill(waiting, *(Ticket("plain") for _ in range(20)))
    fill(waiting, *(Ticket("pushy", deadline_ms=5000) for _ in range(20)))
    served = [ticket.tenant for ticket in take_all(waiting)]
    assert served[:6] == ["pushy"] * 6
    assert served[6:26].count("plain") == 10


def test_who_was_away_has_saved_nothing_up() -> None:
    waiting = queue()
    fill(waiting, *(Ticket("steady") for _ in range(20)))
    for _ in range(10):
        waiting.take(NOW)
    fill(waiting, *(Ticket("guest") for _ in range(10)))
    served = [ticket.tenant for ticket in take_all(waiting)]
    assert served[:10].count("guest") in (5, 6)


def test_what_a_request_cost_in_truth_is_charged() -> None:
    waiting = queue()
    fill(waiting, *(Ticket(tenant) for _ in range(20) for tenant in ("a", "b")))
    first = waiting.take(NOW)
    assert first is not None
    waiting.charge(first, first.cost + 5)
    served = [ticket.tenant for ticket in take_all(waiting)]
    assert served[:6].count(first.tenant) <= 1


def test_a_removed_ticket_is_not_served() -> None:
    waiting = queue()
    first, second = fill(waiting, Ticket(), Ticket())
    waiting.remove(first)
    waiting.remove(first)
    assert len(waiting) == 1
    assert take_all(waiting) == [second]


def test_an_endless_line_of_newcomers_starves_nobody() -> None:
    waiting = queue()
    fill(waiting, *(Ticket("stays") for _ in range(1000)))
    served: list[str] = []
    for number in range(1000):
        fill(waiting, Ticket(f"newcomer {number}"))
        ticket = waiting.take(NOW)
        assert ticket is not None
        served.append(ticket.tenant)
    assert served.count("stays") > 20, "its share falls as more and more of them wait, and never ends"


def test_tenants_that_are_gone_are_forgotten() -> None:
    waiting = queue()
    fill(waiting, *(Ticket("stays") for _ in range(3000)))
    for number in range(2000):
        fill(waiting, Ticket(f"newcomer {number}"))
        waiting.take(NOW)
        waiting.take(NOW)
    for _ in range(len(waiting) - 5):
        waiting.take(NOW)
    assert waiting.remembered < 100


TENANTS = ("a", "b", "c")
TICKETS = st.builds(
    Ticket,
    tenant=st.sampled_from(TENANTS),
    cost=st.floats(1, 10),
    deadline_ms=st.none() | st.integers(0, 2000),
    late_at_ms=st.none() | st.integers(0, 2000),
)


@settings(deadline=None, max_examples=200)
@given(steps=st.lists(TICKETS | st.sampled_from(["take", "remove"]), max_size=60), now=st.integers(0, 2000))
def test_each_ticket_is_served_once_and_none_in_time_behind_a_late_one(
    steps: list[Ticket | str], now: int
) -> None:
    waiting, inside = queue({"a": 3.0}, lead=4), list[Ticket]()
    for step in steps:
        if isinstance(step, Ticket):
            waiting.add(step)
            inside.append(step)
        elif step == "remove" and inside:
            waiting.remove(inside.pop(len(inside) // 2))
        elif step == "take":
            ticket = waiting.take(now)
            assert (ticket is None) is (not inside)
            if ticket is not None:
                if is_late(ticket, now):
                    assert all(is_late(other, now) for other in inside)
                inside.remove(ticket)
        assert len(waiting) == len(inside)
    assert sorted(map(id, take_all(waiting, now))) == sorted(map(id, inside))


def is_late(ticket: Ticket, now_ms: float) -> bool:
    return ticket.late_at_ms is not None and ticket.late_at_ms <= now_ms


@settings(deadline=None, max_examples=200)
@given(
    costs=st.lists(st.tuples(st.sampled_from(TENANTS), st.floats(1, 10)), min_size=1, max_size=80),
    hurry=st.sets(st.sampled_from(TENANTS)),
    weights=st.fixed_dictionaries({tenant: st.floats(0.5, 4) for tenant in TENANTS}),
    lead=st.floats(0, 20),
)
def test_over_every_interval_tenants_that_wait_get_their_shares(
    costs: list[tuple[str, float]], hurry: set[str], weights: dict[str, float], lead: float
) -> None:
    waiting = queue(weights, lead)
    for number, (tenant, cost) in enumerate(costs):
        waiting.add(Ticket(tenant, cost=cost, deadline_ms=2000 + number if tenant in hurry else None))
    served = [(ticket.tenant, ticket.cost / weights[ticket.tenant]) for ticket in take_all(waiting)]
    bound = 2 * (lead + max(cost / weights[tenant] for tenant, cost in costs)) + 1e-6
    for one in TENANTS:
        for other in TENANTS:
            until = min(last_of(served, one), last_of(served, other))
            assert widest(served[:until], one, other) <= bound


def last_of(served: list[tuple[str, float]], tenant: str) -> int:
    """Up to here the tenant waits."""
    places = [place for place, (name, _) in enumerate(served) if name == tenant]
    return max(places, default=0)


def widest(served: list[tuple[str, float]], one: str, other: str) -> float:
    """The most that `one` got more than `other` in any interval."""
    best, ahead, lowest = -math.inf, 0.0, 0.0
    for tenant, share in served:
        ahead += share * ((tenant == one) - (tenant == other))
        best, lowest = max(best, ahead - lowest), min(lowest, ahead)
    return best


def test_tickets_that_gave_up_behind_urgent_ones_are_forgotten() -> None:
    """Those with deadlines go first, and there is always one; the others give up when their time is over."""
    queue = FairQueue({}, 20_000.0)
    queue.add(Ticket(deadline_ms=0))
    for n in range(2_000):
        patient = Ticket()
        queue.add(patient)
        queue.add(Ticket(deadline_ms=n + 1))
        queue.take(0.0)
        queue.remove(patient)
    assert len(queue) == 1
    [tenant] = queue._tenants.values()
    assert len(tenant.in_time) + len(tenant.late) < 100
