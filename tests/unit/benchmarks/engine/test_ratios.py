"""Ratios are of figures of the same round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.engine_bench.ratios import best_of, column, most_disturbed, ratio, spread
from benchmarks.engine_bench.rounds import Turn

RATES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=9)


def turns(*rates: float) -> list[Turn]:
    return [Turn({"batched": rate}, others=0.0) for rate in rates]


def test_a_slow_round_slows_both_and_leaves_the_ratio() -> None:
    found = ratio([200.0, 20.0, 200.0], [100.0, 10.0, 100.0])
    assert (found.least, found.middle, found.most) == (2.0, 2.0, 2.0)


def test_the_median_of_the_ratios_is_not_the_ratio_of_the_medians() -> None:
    assert ratio([1.0, 10.0, 3.0], [1.0, 2.0, 3.0]).middle == 1.0


def test_of_times_the_shorter_is_the_better() -> None:
    assert ratio([10.0], [30.0], less_is_better=True).middle == 3.0


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


@given(RATES, st.floats(0.01, 100))
def test_who_is_always_faster_by_a_factor_is_so_in_the_median(rates: list[float], factor: float) -> None:
    assert ratio([factor * rate for rate in rates], rates).middle == pytest.approx(factor)


def test_the_best_has_the_best_median_whatever_one_round_brought() -> None:
    found = {"steady": turns(5, 5, 5), "lucky": turns(1, 1, 100)}
    assert best_of(found, "batched") == "steady"
    assert best_of(found, "batched", less_is_better=True) == "lucky"
    assert best_of({}, "batched") is None


def test_a_spread_is_told_only_where_there_is_one() -> None:
    assert spread([2.0, 2.0]).as_note() == ""
    assert spread([0.5, 0.25, 0.75]).as_note(100) == "25 to 75"


def test_the_most_disturbed_round_counts() -> None:
    assert most_disturbed([Turn({}, 0.1), Turn({}, 0.7), Turn({}, 0.2)]) == 0.7


def test_a_column_is_one_figure_round_by_round() -> None:
    assert column(turns(3, 1, 2), "batched") == [3, 1, 2]
