from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.queue_bench.figures import backlog_size
from benchmarks.shared.figures import Best, best, median, percentile

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


def test_the_95th_percentile_of_a_hundred_is_the_95th() -> None:
    assert percentile(list(range(1, 101)), 0.95) == 95


def test_the_median_of_two_is_one_of_them() -> None:
    assert median([3.0, 1.0]) == 1.0


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


@given(NUMBERS, st.floats(0, 1))
def test_the_share_is_not_exceeded_and_no_lesser_value_would_do(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) <= share * len(values)


def test_the_best_is_the_fastest_by_name() -> None:
    assert best({"slow": 1.0, "fast": 3.0, "middling": 2.0}) == Best("fast", 3.0)


def test_the_best_of_none_is_none() -> None:
    assert best({}) is None


def test_a_backlog_keeps_somebody_busy_within_bounds() -> None:
    assert backlog_size(1234, 8, least=1000, most=30_000) == 9900
    assert backlog_size(10, 8, least=1000, most=30_000) == 1000
    assert backlog_size(1e6, 8, least=1000, most=30_000) == 30_000
