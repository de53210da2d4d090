"""Prompt lookup decoding (Saxena 2023; the method `ngram` of vLLM): answers often repeat what stands in their
prompt or in themselves, and then the best guess is what came after it the last time.

    … the cat sat on the mat. He said that the cat sat
                  ▲                            └─────┘ stands further up:
                  └ "on the mat." is proposed
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramProposer:
    """Proposes what followed the longest n-gram, of `longest` down to `shortest` tokens, that ends the known
    tokens and also stands earlier in them: at its latest place, if it has several.

    Where that is so near the end that less than `count` tokens follow, the copy runs on into itself (as in
    LZ77), and a text with a period goes on in it.

    Each known token is entered once under each length: O(1) a token, and of memory about 200 bytes for each
    of the lengths.
    """

    __slots__ = ("_lengths", "_next", "_places")

    def __init__(self, longest: int, shortest: int) -> None:
        assert 1 <= shortest <= longest, f"n-grams of {longest} down to {shortest} tokens"
        self._lengths = range(longest, shortest - 1, -1)
        # By n-gram, where its latest follower stands. Those that end before `_next` are in.
        self._places: dict[tuple[int, ...], int] = {}
        self._next = 1

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        self._enter(token_ids)
        for length in self._lengths:
            place = self._places.get(tuple(token_ids[-length:]))
            if place is not None:
                period = len(token_ids) - place
                return [token_ids[place + i % period] for i in range(count)]
        return []

    def _enter(self, token_ids: Sequence[int]) -> None:
        """All n-grams that have a follower; so the one at the very end finds others, and not itself."""
        for end in range(self._next, len(token_ids)):
            for length in self._lengths:
                if length <= end:
                    self._places[tuple(token_ids[end - length : end])] = end
        self._next = max(self._next, len(token_ids))
