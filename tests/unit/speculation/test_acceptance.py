"""How much of a draft counts."""

from __future__ import annotations

import pytest

from headrace.gpu_engine.speculation.acceptance import accept


@pytest.mark.parametrize(
    ("draft", "sampled", "run"),
    [
        ([], [5], [5]),
        ([5, 6], [5, 6, 7], [5, 6, 7]),
        ([5, 6], [5, 8, 7], [5, 8]),
        ([5, 6], [8, 6, 7], [8]),
        ([5, 6], [5, None, 7], [5]),  # no logits behind a guess: the next step sees for itself
        ([5, 6], [None, 6, 7], []),
    ],
)
def test_a_run_ends_with_the_first_token_that_was_not_guessed(
    draft: list[int], sampled: list[int | None], run: list[int]
) -> None:
    assert accept(draft, sampled) == run


def test_rows_behind_a_wrong_guess_are_not_even_sampled() -> None:
    rows = iter([5, 8, 7])
    assert accept([5, 6], rows) == [5, 8]
    assert [*rows] == [7]
