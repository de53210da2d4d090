"""Interruptions are read from transcripts and from the times of kills alone."""

from __future__ import annotations

import pytest

from tests.faults.checker.record import Shown, Transcript
from tests.faults.measures import Interruption, interruptions, percentile_95


def started(pid: int, at_s: float, kept: int = 0) -> Shown:
    return Shown("started", pid, kept=kept, consumer=f"host-{pid}-ab12", at_s=at_s)


def delta(at_s: float) -> Shown:
    return Shown("delta", 1, token_ids=(1,), at_s=at_s)


def found(*shown: Shown, kills: list[tuple[float, int]]) -> list[Interruption]:
    return interruptions([Transcript("r", shown)], kills, step_s=0.5)


RESUMED = (started(1, 0.0), delta(1.0), started(2, 4.0, kept=1), delta(5.0))


@pytest.mark.parametrize(("other", "again"), [(1.0, False), (3.0, True), (6.0, False)])
def test_a_wait_runs_from_the_kill_to_the_next_token(other: float, again: bool) -> None:
    assert found(*RESUMED, kills=[(2.0, 1), (other, 9)]) == [Interruption("r", 3.0, again, 1, 2.0)]


def test_a_take_over_without_a_kill_is_none() -> None:
    assert found(*RESUMED, kills=[(2.0, 2)]) == []


def test_an_engine_that_its_own_consumer_replaced_is_none() -> None:
    assert found(started(1, 0.0), delta(1.0), started(1, 2.0), delta(3.0), kills=[(1.5, 1)]) == []


def test_nothing_is_said_of_an_answer_that_never_went_on() -> None:
    assert found(*RESUMED[:3], kills=[(2.0, 1)]) == []


def test_of_few_values_the_largest_counts() -> None:
    assert percentile_95([]) == 0
    assert percentile_95([3.0, 1.0]) == 3.0
    assert percentile_95([float(n) for n in range(1, 101)]) == pytest.approx(95.95)
