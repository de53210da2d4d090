"""Log probabilities of a prompt's own tokens, gathered chunk by chunk while it is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.gpu_engine.api import TokenLogprobs
from headrace.gpu_engine.sampling.logprobs import Scores


class PromptScores:
    """Entry i tells of prompt token i + 1, which the logits at position i predict. None predict the first.

    Positions come in order, from 0; those that a preemption makes the model compute again are not scored
    again. The request must not begin with tokens from the prefix cache, whose logits nobody has.
    """

    __slots__ = ("_num_top", "_prompt", "_scores", "_taken_at")

    def __init__(self, prompt_ids: Sequence[int], num_top: int) -> None:
        self._prompt = list(prompt_ids)
        self._num_top = num_top
        self._scores: list[TokenLogprobs] = []
        self._taken_at: int | None = None

    def wanted(self, start: int, length: int) -> range:
        """Of the positions `start` … `start + length - 1`, those whose logits are yet to be scored."""
        first, last = len(self._scores), len(self._prompt) - 1
        assert start <= first or first == last, "tokens were passed over whose logits were asked for"
        return range(first, max(first, min(start + length, last)))

    def add(self, logits: npt.NDArray[np.float32]) -> None:
        """Logits [n, V], finite, of the next n positions."""
        for row in logits:
            scores = Scores(row, self._num_top)
            self._scores.append(scores.of(self._prompt[len(self._scores) + 1]))

    def take(self, position: int) -> list[TokenLogprobs] | None:
        """All of them, beside the first token, that of `position`, which is sampled when the last one is
        there; and again where that token is, since its step may have run out of memory behind this."""
        if len(self._scores) < len(self._prompt) - 1:
            return None
        if self._taken_at is None:
            self._taken_at = position
        return self._scores if position == self._taken_at else None
