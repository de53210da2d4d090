"""How much a consumer asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumer.window import Ask, Window, fair_room, reserve_for, slots_for

WINDOW = Window(slots=8, room=24, reserve=2, room_bytes=1000)


def ask(held: int, *, waiting: int = 0, waiting_bytes: int = 0, room: int = 24, alike: bool = False) -> Ask:
    return WINDOW.ask(held=held, waiting=waiting, waiting_bytes=waiting_bytes, room=room, alike=alike)


@pytest.mark.parametrize(("batch", "slots"), [(1, 3), (4, 6), (8, 10), (16, 20), (256, 320)])
def test_a_margin_beyond_the_batch_keeps_freed_slots_filled(batch: int, slots: int) -> None:
    assert slots_for(batch) == slots


def test_an_idle_consumer_asks_for_its_slots_its_room_and_its_reserve() -> None:
    assert ask(0) == Ask(8 + 24 + 2, 2)
    assert ask(0, room=0) == Ask(8 + 2, 2)


def test_a_full_one_asks_for_interactive_work_only() -> None:
    assert ask(32, waiting=24) == Ask(2, 2)
    assert ask(33, waiting=24) == Ask(1, 1)
    assert ask(34, waiting=24) == Ask(0, 0)


def test_the_room_is_filled_by_halves() -> None:
    assert ask(8 + 13, waiting=13).shared == 0
    assert ask(8 + 12, waiting=12).shared == 12
    assert ask(7).shared == 25


def test_where_all_is_alike_the_room_is_no_larger_than_half_the_slots() -> None:
    assert ask(0, alike=True).shared == 8 + 4
    assert ask(8 + 4, waiting=4, alike=True).shared == 0
    assert ask(8 + 2, waiting=2, alike=True).shared == 2
    assert ask(0, room=1, alike=True).shared == 8 + 1, "near the end it shrinks as any room"


def test_a_room_full_of_large_bodies_takes_no_more() -> None:
    assert ask(8 + 2, waiting=2, waiting_bytes=1000) == Ask(2, 2)


def test_a_room_that_shrank_still_leaves_the_reserve() -> None:
    assert ask(8 + 10, waiting=10, room=0) == Ask(2, 2)


def test_the_room_shrinks_with_the_backlog_and_the_number_of_consumers() -> None:
    assert (fair_room(100, 1), fair_room(100, 5), fair_room(3, 2), fair_room(10, 0)) == (50, 10, 0, 5)


def test_slots_beyond_all_others_are_for_interactive_work() -> None:
    assert WINDOW.may_serve(7)
    assert not WINDOW.may_serve(8)
    assert WINDOW.may_serve_interactive(9)
    assert not WINDOW.may_serve_interactive(10)
    assert (reserve_for(3), reserve_for(40)) == (2, 10)


@given(
    held=st.integers(0, 40), waiting=st.integers(0, 40), size=st.integers(0, 2000), room=st.integers(0, 50)
)
def test_what_is_asked_for_never_exceeds_the_window(held: int, waiting: int, size: int, room: int) -> None:
    asked = ask(held, waiting=min(waiting, held), waiting_bytes=size, room=room)
    assert 0 <= asked.reserved <= WINDOW.reserve
    assert asked.shared >= 0
    if asked.shared:
        assert held + asked.shared <= WINDOW.slots + min(WINDOW.room, room)
    if asked.limit:
        assert held + asked.limit <= WINDOW.slots + WINDOW.room + WINDOW.reserve
