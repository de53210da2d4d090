"""The order of lanes: strict, until a lane was passed over too often."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.lanes import Preference, Share
from headrace.broker.message import Lane

PATIENCE = 4
LANES = tuple(Lane)


def serve(preference: Preference, waiting: Counter[Lane], limit: int, reserved: int = 0) -> Counter[Lane]:
    """What an adapter does with a plan."""
    plan, taken = preference.plan(limit, reserved), Counter[Lane]()
    for share in plan:
        room = limit if share.lane is Lane.INTERACTIVE else limit - reserved
        n = max(0, min(share.at_most, waiting[share.lane] - taken[share.lane], room - taken.total()))
        taken[share.lane] += n
    preference.taken(taken, plan)
    waiting.subtract(taken)
    return taken


def test_higher_lanes_come_first_whatever_the_order_they_were_named_in() -> None:
    plan = Preference([Lane.BATCH, Lane.INTERACTIVE]).plan(8)
    assert plan == [Share(Lane.INTERACTIVE, 8), Share(Lane.BATCH, 8)]


def test_a_lane_that_was_passed_over_too_often_gets_one_delivery() -> None:
    preference, waiting = Preference(LANES, PATIENCE), Counter(dict.fromkeys(LANES, 100))
    served = [next(iter(+serve(preference, waiting, 1))) for _ in range(6)]
    assert served == [Lane.INTERACTIVE] * 4 + [Lane.STANDARD, Lane.BATCH]


def test_the_reserve_is_for_the_interactive_lane_alone() -> None:
    preference = Preference(LANES, PATIENCE)
    assert serve(preference, Counter({Lane.BATCH: 9}), limit=5, reserved=2) == Counter({Lane.BATCH: 3})
    assert serve(preference, Counter({Lane.INTERACTIVE: 9}), limit=5, reserved=2).total() == 5
    assert preference.plan(2, reserved=2) == [Share(Lane.INTERACTIVE, 2)]


def test_an_empty_lane_does_not_age() -> None:
    preference, waiting = Preference(LANES, PATIENCE), Counter({Lane.BATCH: 50})
    for _ in range(20):
        serve(preference, waiting, 1)
    assert not any(share.turn for share in preference.plan(1) if share.lane in LANES[:2])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=30, max_size=80))
def test_no_lane_waits_longer_than_its_bound_however_full_the_others_are(
    pulls: list[tuple[int, int]],
) -> None:
    preference, waiting = Preference(LANES, PATIENCE), Counter(dict.fromkeys(LANES, 10_000))
    passed = dict.fromkeys(LANES, 0)
    for limit, reserved in pulls:
        reserved = min(reserved, limit - 1)
        taken = serve(preference, waiting, limit, reserved)
        for index, lane in enumerate(LANES):
            higher = sum(taken[other] for other in LANES[:index])
            passed[lane] = 0 if taken[lane] else passed[lane] + higher
            assert passed[lane] <= PATIENCE + len(LANES) + 2 * limit + 6
