"""Stages that rule tokens out: bad words, and ends that would come too early."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headrace.gpu_engine.sampling.filters import Row
from headrace.gpu_engine.sampling.known import KnownTokens

NEVER = np.float32(-np.inf)


class BadWords:
    """Rules out the last token of each of `words` (token sequences, none empty) where the output so far ends
    with all before it."""

    def __init__(self, words: Iterable[Sequence[int]], known: KnownTokens) -> None:
        distinct = sorted({tuple(word) for word in words})
        self._always = np.array([word[0] for word in distinct if len(word) == 1], np.int64)
        self._longer = [(word[:-1], word[-1]) for word in distinct if len(word) > 1]
        self._known = known

    def __call__(self, logits: Row) -> None:
        logits[self._always] = NEVER
        for head, last in self._longer:
            if self._known.ends_with(head):
                logits[last] = NEVER


class MinTokens:
    """Rules out all that ends an answer (`end_ids`) until it has `min_tokens` tokens."""

    def __init__(self, min_tokens: int, end_ids: Iterable[int], known: KnownTokens) -> None:
        self._min_tokens = min_tokens
        self._end_ids = np.array(sorted(end_ids), np.int64)
        self._known = known

    def __call__(self, logits: Row) -> None:
        if self._known.num_output < self._min_tokens:
            logits[self._end_ids] = NEVER
