"""What is known of one request, as its stages see it: the request's own list of tokens, which only grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """`token_ids`: prompt and output, shared with the request; the first `num_prompt` are the prompt."""

    token_ids: list[int]
    num_prompt: int

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def output(self) -> Sequence[int]:
        return self.token_ids[self.num_prompt :]

    def ends_with(self, tail: Sequence[int]) -> bool:
        """Whether the output (not the prompt) ends with `tail`."""
        return len(tail) <= self.num_output and self.token_ids[len(self.token_ids) - len(tail) :] == [*tail]


class Tally:
    """How often each token occurs among the known ones from `start` on; each is counted once, when it is new.
    What it says depends on the tokens alone, so it may be thrown away and made anew."""

    __slots__ = ("_counted", "_counts", "_known")

    def __init__(self, known: KnownTokens, start: int) -> None:
        self._known = known
        self._counted = start
        self._counts: dict[int, int] = {}

    def read(self) -> tuple[Ids, Ids]:
        """The distinct tokens, in the order of their first place, and their counts."""
        tokens = self._known.token_ids
        for token in tokens[self._counted :]:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._counted = len(tokens)
        size = len(self._counts)
        return np.fromiter(self._counts, np.int64, size), np.fromiter(self._counts.values(), np.int64, size)
