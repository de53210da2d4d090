"""The rule by which answers are held to a reference is not laxer than it says."""

import pytest

from tests.support.reference_answers import TIE, Answer, Comparison

REFERENCE = Answer(token_ids=[5, 6, 7], seconds=[1, 2, 3], gaps=[1.0, TIE / 2, TIE * 2])


def compared(*ours: int, times: int = 1) -> Comparison:
    comparison = Comparison()
    for _ in range(times):
        comparison.compare("an answer", list(ours), REFERENCE)
    return comparison


def test_equal_answers_pass() -> None:
    compared(5, 6, 7).check()


@pytest.mark.parametrize("ours", [(1, 6, 7), (5, 6, 3), (5, 4, 7), (5, 6), (5, 6, 7, 8), ()])
def test_a_difference_fails_unless_it_is_the_second_best_token_of_a_near_tie(ours: tuple[int, ...]) -> None:
    comparison = compared(*ours, times=1000)
    assert comparison.ties == 0
    with pytest.raises(AssertionError, match="an answer"):
        comparison.check()


def test_near_ties_are_counted_and_must_stay_below_one_in_a_thousand_tokens() -> None:
    comparison = compared(5, 2, 7)
    assert (comparison.ties, comparison.tokens) == (1, 2)
    with pytest.raises(AssertionError, match="1 ties in 2 tokens"):
        comparison.check()
    for _ in range(400):
        comparison.compare("an answer", [5, 6, 7], REFERENCE)
    comparison.check()
