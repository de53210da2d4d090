"""What a log lacks, in the order in which it was made."""

from __future__ import annotations

from headrace.broker.events import Delta, TokenLogprobs
from headrace.consumer.unsent import Unsent


def score(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0)


def test_what_comes_back_goes_before_what_came_meanwhile() -> None:
    unsent = Unsent()
    unsent.add(1, [1], "a", [score(1)], [score(9)])
    [delta] = unsent.take(1, 4)
    assert not unsent
    unsent.add(1, [2], "b", [score(2)], [])
    unsent.put_back(delta)
    assert unsent.num_tokens == 2
    assert unsent.take(2, 4) == [Delta(2, 4, (1, 2), "ab", 1, (score(1), score(2)), (score(9),))]


def test_answers_are_numbered_in_their_order() -> None:
    unsent = Unsent()
    for choice in (2, 0):
        unsent.add(choice, [choice], "", (), ())
    assert unsent.take(1, 7) == [Delta(1, 7, (0,), "", 0), Delta(1, 8, (2,), "", 2)]
