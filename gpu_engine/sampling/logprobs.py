"""Log probabilities of a row of logits, as the model gave them: before temperature, penalties and filters."""

from __future__ import annotations

from math import log

import numpy as np

from headrace.gpu_engine.api import TokenLogprobs
from headrace.gpu_engine.sampling.filters import Row, keep_top_k


class Scores:
    """The log-softmax of one row. What is asked for often is computed once: the normaliser, and the `count`
    likeliest tokens (equal ones in the order of their ids)."""

    __slots__ = ("_logits", "_norm", "_top")

    def __init__(self, logits: Row, count: int) -> None:
        """`logits` [V] finite float32; they are kept, not copied."""
        self._logits = logits
        largest = float(logits.max())
        with np.errstate(over="ignore"):
            self._norm = largest + log(np.exp(logits - np.float32(largest)).sum(dtype=np.float64))
        self._top = self._find_top(min(count, len(logits)))

    def of(self, token: int) -> TokenLogprobs:
        """The score of `token`, beside those of the likeliest ones."""
        return TokenLogprobs(token=token, logprob=self._score(token), top=self._top)

    def _find_top(self, count: int) -> list[tuple[int, float]]:
        if not count:
            return []
        kept = keep_top_k(self._logits, count)
        best = kept[np.argsort(-self._logits[kept], kind="stable")][:count]
        return [(token, self._score(token)) for token in best.tolist()]

    def _score(self, token: int) -> float:
        return float(self._logits[token]) - self._norm
