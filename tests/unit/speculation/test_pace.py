"""Drafts are as long as they are right, and none are made where they do not pay."""

from __future__ import annotations

from random import Random

import pytest

from headrace.gpu_engine.speculation.pace import TRY_EVERY, AdaptivePace, Steady
from headrace.gpu_engine.speculation.price import Free, MeasuredPrice


def test_a_draft_is_twice_as_long_as_what_was_right_of_the_last_one() -> None:
    pace, lengths = AdaptivePace(8), []
    for accepted in (2, 4, 3, 6, 1, 0, 1):
        lengths.append(pace.length(0))
        pace.observe(lengths[-1], accepted)
    assert lengths == [2, 4, 8, 6, 8, 2, 1]


def test_a_request_whose_drafts_are_wrong_tries_one_token_now_and_then() -> None:
    pace, lengths = AdaptivePace(8), []
    for _ in range(2 * TRY_EVERY + 4):
        lengths.append(pace.length(0))
        if lengths[-1]:
            pace.observe(lengths[-1], 0)
    assert lengths[:4] == [2, 1, 1, 1]
    assert lengths[4:] == ([0] * (TRY_EVERY - 1) + [1]) * 2


def test_it_goes_on_when_a_try_was_right() -> None:
    pace = AdaptivePace(8)
    for _ in range(10):
        pace.observe(1, 0)
    assert [pace.length(0) for _ in range(TRY_EVERY)][-1] == 1
    pace.observe(1, 1)
    assert pace.length(0) == 2


def test_half_of_a_draft_is_right_and_that_pays_or_not_by_the_price() -> None:
    pace = AdaptivePace(8)
    for _ in range(10):
        pace.observe(8, 4)
    assert pace.length(price=0.45) == 8
    assert pace.length(price=0.55) == 0


def test_a_steady_pace_does_not_change() -> None:
    pace = Steady(5)
    pace.observe(5, 0)
    assert pace.length(price=1) == 5


# ------------------------------------------------------------------------------ the price


@pytest.mark.parametrize(
    ("fixed", "each", "rows", "price"),
    [
        (10.0, 0.0, 1, 0.0),  # the step waits for memory: rows are free
        (9.0, 1.0, 1, 0.1),
        (9.0, 1.0, 16, 0.64),
        (0.0, 1.0, 16, 1.0),  # arithmetic alone: a draft must always be right
    ],
)
def test_the_price_is_a_rows_own_share_of_what_a_row_costs(
    fixed: float, each: float, rows: int, price: float
) -> None:
    random, measured = Random(1), MeasuredPrice()
    for _ in range(200):
        size = random.choice([1, 4, 8, 16, 20])
        measured.observe(size, fixed + each * size)
    assert measured.of(rows) == pytest.approx(price, abs=1e-6)


def test_rows_are_free_until_steps_of_two_sizes_were_seen() -> None:
    measured = MeasuredPrice()
    assert measured.of(4) == 0
    for _ in range(50):
        measured.observe(4, 1.0)
    assert measured.of(4) == 0
    measured.observe(8, 2.0)
    assert measured.of(4) > 0.9


def test_what_was_learnt_stays_while_all_steps_are_of_one_size() -> None:
    random, measured = Random(2), MeasuredPrice()
    for size in [1, 9] * 50:
        measured.observe(size, 8.0 + size)
    for _ in range(2_000):
        measured.observe(4, random.gauss(12.0, 2.0))
    assert measured.of(4) == pytest.approx(4 / 12, abs=0.15)


def test_noise_leaves_the_price_between_0_and_1() -> None:
    random, measured = Random(3), MeasuredPrice()
    for _ in range(500):
        measured.observe(random.randint(1, 40), random.expovariate(1.0))
        assert 0 <= measured.of(random.randint(1, 40)) <= 1


def test_where_nobody_measures_rows_are_free() -> None:
    free = Free()
    free.observe(8, 1.0)
    assert free.of(8) == 0
