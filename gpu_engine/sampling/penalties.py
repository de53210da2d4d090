"""Stages that make tokens likelier or less likely: logit bias and the three penalties."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.gpu_engine.sampling.filters import Row
from headrace.gpu_engine.sampling.known import KnownTokens, Tally

FINITE = np.finfo(np.float32)
"""Penalties near zero would take logits beyond it."""


class LogitBias:
    """Adds a number to the logits of chosen tokens (OpenAI API, `logit_bias`)."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.fromiter(bias, np.int64, len(bias))
        self._amounts = np.fromiter(bias.values(), np.float32, len(bias))

    def __call__(self, logits: Row) -> None:
        logits[self._ids] += self._amounts


class RepetitionPenalty:
    """Divides the positive logits of all tokens seen so far, prompt and output, by `penalty`, and multiplies
    the negative ones (Keskar et al. 2019, as in transformers and vLLM)."""

    def __init__(self, penalty: float, known: KnownTokens) -> None:
        self._penalty = max(np.float32(penalty), FINITE.tiny)
        self._tally = Tally(known, 0)

    def __call__(self, logits: Row) -> None:
        seen, _ = self._tally.read()
        scores = logits[seen]
        with np.errstate(over="ignore"):
            scores = np.where(scores < 0, scores * self._penalty, scores / self._penalty)
        logits[seen] = np.clip(scores, FINITE.min, FINITE.max)


class OccurrencePenalties:
    """Takes `frequency` times its count, and `presence` once, off each token of the output so far (OpenAI API
    and vLLM; the prompt does not count)."""

    def __init__(self, frequency: float, presence: float, known: KnownTokens) -> None:
        self._frequency = np.float32(frequency)
        self._presence = np.float32(presence)
        self._tally = Tally(known, known.num_prompt)

    def __call__(self, logits: Row) -> None:
        seen, counts = self._tally.read()
        logits[seen] -= self._frequency * counts.astype(np.float32) + self._presence
