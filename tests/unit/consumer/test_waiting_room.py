"""Which lane is next, and that nobody is lost in the room."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.message import Lane
from headrace.consumer.fair_queue import Ticket
from headrace.consumer.waiting_room import WaitingRoom

PATIENCE = 3


def room(*lanes: Lane) -> WaitingRoom:
    return WaitingRoom(lanes or tuple(Lane), patience=PATIENCE)


def enter(waiting: WaitingRoom, lane: Lane, count: int = 1) -> list[Ticket]:
    tickets = [Ticket(size=10) for _ in range(count)]
    for ticket in tickets:
        waiting.add(ticket, lane)
    return tickets


def test_higher_lanes_go_first() -> None:
    waiting = room()
    [batch], [interactive], [standard] = (
        enter(waiting, lane) for lane in (Lane.BATCH, Lane.INTERACTIVE, Lane.STANDARD)
    )
    assert [waiting.take(0) for _ in range(4)] == [interactive, standard, batch, None]


def test_a_lane_that_was_passed_over_for_long_has_a_turn() -> None:
    waiting = room()
    batch = enter(waiting, Lane.BATCH, 2)
    enter(waiting, Lane.INTERACTIVE, 20)
    taken = [waiting.take(0) for _ in range(2 * PATIENCE + 2)]
    assert [place for place, ticket in enumerate(taken) if ticket in batch] == [PATIENCE, 2 * PATIENCE + 1]


def test_what_is_reserved_is_for_the_interactive_lane_even_if_others_are_overdue() -> None:
    waiting = room()
    enter(waiting, Lane.BATCH)
    interactive = enter(waiting, Lane.INTERACTIVE, PATIENCE + 2)
    taken = [waiting.take(0, interactive_only=True) for _ in range(PATIENCE + 3)]
    assert taken == [*interactive, None]
    assert len(waiting) == 1


def test_a_room_without_the_interactive_lane_has_nothing_for_its_reserve() -> None:
    waiting = room(Lane.BATCH)
    enter(waiting, Lane.BATCH)
    assert waiting.take(0, interactive_only=True) is None


def test_what_leaves_unserved_is_gone() -> None:
    waiting = room()
    [ticket] = enter(waiting, Lane.BATCH)
    waiting.remove(ticket)
    waiting.remove(ticket)
    assert (len(waiting), waiting.size, waiting.take(0)) == (0, 0, None)


STEPS = st.lists(st.sampled_from([*Lane, "take", "take interactive", "remove"]), max_size=80)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS)
def test_each_one_that_enters_leaves_once_and_the_counts_are_right(steps: list[str]) -> None:
    waiting, inside = room(), dict[Ticket, Lane]()
    for step in steps:
        if isinstance(step, Lane):
            inside[enter(waiting, step)[0]] = step
        elif step == "remove" and inside:
            gone = next(iter(inside))
            waiting.remove(gone)
            del inside[gone]
        elif step.startswith("take"):
            only = step == "take interactive"
            ticket = waiting.take(0, interactive_only=only)
            eligible = [t for t, lane in inside.items() if not only or lane is Lane.INTERACTIVE]
            assert (ticket is None) is (not eligible)
            if ticket is not None:
                del inside[ticket]
        assert (len(waiting), waiting.size) == (len(inside), 10 * len(inside))
        for lane in Lane:
            assert waiting.count(lane) == list(inside.values()).count(lane)


@settings(deadline=None, max_examples=40)
@given(arrivals=st.lists(st.sets(st.sampled_from(list(Lane))), min_size=40, max_size=80))
def test_the_head_of_a_lane_waits_for_no_more_than_its_patience_and_the_turns_of_other_lanes(
    arrivals: list[set[Lane]],
) -> None:
    waiting, entered = room(), dict[Lane, list[tuple[int, Ticket]]]((lane, []) for lane in Lane)
    for now, lanes in enumerate(arrivals):
        for lane in lanes:
            entered[lane].append((now, enter(waiting, lane)[0]))
        ticket = waiting.take(0)
        for line in entered.values():
            if line and line[0][1] is ticket:
                line.pop(0)
                line[:] = [(now + 1 if place == 0 else at, t) for place, (at, t) in enumerate(line)]
            if line:
                assert now - line[0][0] <= PATIENCE + len(Lane)
