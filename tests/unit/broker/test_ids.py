"""Ids of our own making: unique, sorted by time, and readable by every gateway."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.ids import ALPHABET, PREFIX, Place, new_request_id, read_request_id
from headrace.broker.message import Lane

PLACES = st.integers(0, (1 << 14) - 1)
TIMES = st.integers(0, (1 << 48) - 1)


@settings(deadline=None)
@given(st.sampled_from(Lane), PLACES, TIMES)
def test_an_id_says_when_and_for_which_lane_it_was_made_and_where_its_log_lies(
    lane: Lane, place: int, at_ms: int
) -> None:
    assert read_request_id(new_request_id(lane, place, at_ms)) == Place(at_ms, lane, place)


@settings(deadline=None)
@given(st.sampled_from(Lane), PLACES, TIMES)
def test_an_id_has_one_length_and_one_alphabet(lane: Lane, place: int, at_ms: int) -> None:
    digits = new_request_id(lane, place, at_ms).removeprefix(PREFIX)
    assert len(digits) == 26
    assert set(digits) <= set(ALPHABET)


@settings(deadline=None)
@given(TIMES, TIMES, st.sampled_from(Lane), st.sampled_from(Lane), PLACES, PLACES)
def test_ids_sort_by_time_whatever_their_lane_and_place(
    first: int, second: int, lane: Lane, other: Lane, place: int, elsewhere: int
) -> None:
    if first < second:
        assert new_request_id(lane, place, first) < new_request_id(other, elsewhere, second)


def test_ids_of_one_millisecond_differ() -> None:
    assert len({new_request_id(Lane.BATCH, 1, 1_700_000_000_000) for _ in range(1_000)}) == 1_000


def test_an_id_is_made_at_the_time_of_now_unless_told_otherwise() -> None:
    before = time.time_ns() // 1_000_000
    place = read_request_id(new_request_id(Lane.INTERACTIVE))
    assert place is not None
    assert before <= place.at_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        "req_",
        "req-0",
        "mine",
        "headrace.requests.batch/0/17",
        "0" * 26,
        "req_" + "0" * 25,
        "req_" + "0" * 27,
        "req_" + "u" * 26,
        "REQ_" + "0" * 26,
        "req_" + "é" * 26,
    ],
)
def test_an_id_of_somebody_elses_making_says_nothing(foreign: str) -> None:
    assert read_request_id(foreign) is None


def test_an_id_of_a_lane_that_does_not_exist_says_nothing() -> None:
    """All digits at their highest: lane number 15."""
    assert read_request_id(PREFIX + "z" * 26) is None


@settings(deadline=None)
@given(st.text(max_size=40))
def test_reading_never_fails(text: str) -> None:
    read_request_id(text)
    read_request_id(PREFIX + text)


@pytest.mark.parametrize("place", [-1, 1 << 14])
def test_a_place_that_does_not_fit_is_our_own_mistake(place: int) -> None:
    with pytest.raises(AssertionError):
        new_request_id(Lane.BATCH, place)
