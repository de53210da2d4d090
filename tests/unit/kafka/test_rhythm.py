"""Partitions of delays are read in good time, and rest for most of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.kafka.rhythm import Rhythm

TICK_S = 0.25


def states(length_s: float, seconds: float, found: tuple[float, ...] = ()) -> list[bool]:
    """Whether it rests, at each tick."""
    rhythm, rests = Rhythm(length_s, 0.0), []
    for tick in range(int(seconds / TICK_S)):
        now = tick * TICK_S
        if any(now <= at < now + TICK_S for at in found):
            rhythm.found(now)
        rhythm.tick(now)
        rests.append(rhythm.rests)
    return rests


@given(st.floats(2.0, 700.0), st.floats(0.0, 1.0))
def test_what_is_written_at_any_time_is_looked_at_before_it_is_due(length_s: float, share: float) -> None:
    rests = states(length_s, 4 * length_s)
    written = int(share * 2 * length_s / TICK_S)
    awake = next(tick for tick in range(written + 1, len(rests)) if not rests[tick])
    assert (awake - written) * TICK_S < length_s - 0.5, "time for a fetch is left"


@pytest.mark.parametrize("length_s", [5.0, 30.0, 120.0, 600.0])
def test_mostly_it_rests(length_s: float) -> None:
    rests = states(length_s, 20 * length_s)
    assert sum(rests) >= 0.75 * len(rests)


def test_it_begins_with_a_look_as_long_as_something_is_found() -> None:
    assert states(5.0, 3.0).index(True) * TICK_S == 0.75
    assert states(5.0, 5.0, found=(0.5, 1.0, 1.5)).index(True) * TICK_S == 2.25


def test_short_delays_never_rest() -> None:
    assert not any(states(1.0, 60.0))
