"""The proposer finds what a plain search of the whole text finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.gpu_engine.speculation.ngram import NgramProposer


def search(tokens: Sequence[int], count: int, longest: int, shortest: int) -> list[int]:
    """The longest end of `tokens` that stands earlier in them, at its latest place: what follows there."""
    for length in range(longest, shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if length < len(tokens) and tokens[place - length : place] == tokens[-length:]:
                text = [*tokens]
                for i in range(count):
                    text.append(text[place + i])
                return text[len(tokens) :]
    return []


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    cuts=st.sets(st.integers(1, 60)),
    count=st.integers(1, 9),
    lengths=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_it_proposes_what_a_plain_search_finds_however_the_tokens_came(
    tokens: list[int], cuts: set[int], count: int, lengths: tuple[int, int]
) -> None:
    shortest, longest = sorted(lengths)
    proposer = NgramProposer(longest, shortest)
    for end in sorted(cuts | {len(tokens)}):
        known = tokens[:end]
        assert proposer.propose(known, count) == search(known, count, longest, shortest)


@pytest.mark.parametrize(
    ("known", "proposed"),
    [
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 4, 5, 9, 2], []),  # a single token is too little to go by
        ([1, 2, 7, 8, 1, 2, 5, 6, 1, 2], [5, 6, 1]),  # the latest place
        ([8, 1, 2, 7, 7, 9, 1, 2, 5, 5, 8, 1, 2], [7, 7, 9]),  # the longest match, although it is older
        ([4, 4, 4], [4, 4, 4]),
        ([1, 2, 1, 2, 1, 2], [1, 2, 1]),  # the copy runs on into itself
        ([1], []),
        ([1, 2], []),
    ],
)
def test_worked_examples(known: list[int], proposed: list[int]) -> None:
    assert NgramProposer(3, 2).propose(known, 3) == proposed


def test_a_token_is_entered_once_however_often_it_is_asked() -> None:
    proposer = NgramProposer(4, 2)
    known = Watched([*range(200)])
    proposer.propose(known, 1)
    first = known.reads
    for token in range(100):
        known.append(token)
        proposer.propose(known, 1)
    assert first <= 3 * 200 + 3
    assert known.reads - first <= 100 * (3 + 3 + 1)


class Watched(list[int]):
    """A list that counts how often it is looked into."""

    reads = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def]  # list has two overloads
        self.reads += 1
        return super().__getitem__(place)
