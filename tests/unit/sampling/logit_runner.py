"""A model whose logits come from a hash of the whole context, so that what shapes them can be checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from headrace.gpu_engine.sampling.head import SamplingHead
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan, StepResult
from tests.unit.engine.fakes import VOCAB, HashRunner

Logits: TypeAlias = Callable[[Sequence[int]], list[float]]
"""From a context to the logits of the token after it."""


def logits_after(context: Sequence[int]) -> list[float]:
    draw = random.Random(hash(tuple(context)))
    return [draw.gauss(0, 2) for _ in range(VOCAB)]


class LogitRunner(HashRunner):
    """A `HashRunner` that samples as a real runner does; its hidden states are its logits."""

    head = SamplingHead(lambda hidden: hidden)
    logits_after: Logits = staticmethod(logits_after)

    def launch(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        self._move(plan)
        rows: list[list[float]] = []
        ends: list[int] = []
        for chunk in plan.chunks:
            self._store(chunk)
            rows += self._rows_of(chunk, self._context(chunk))
            ends.append(len(rows))
        sampled = self.head.sample(plan.chunks, torch.tensor(rows), torch.tensor(ends))
        return StepResult(
            plan.step, sampled.tokens, sampled.failed, sampled.logprobs, sampled.prompt_logprobs
        )

    def _rows_of(self, chunk: Chunk, context: Sequence[int]) -> list[list[float]]:
        """Logits at the chunk's positions; nothing at those that nobody will look at."""
        scored = chunk.controls is not None and chunk.controls.prompt_scores is not None
        ends = range(chunk.start + 1, len(context) + 1)
        nothing = [0.0] * VOCAB
        return [
            self.logits_after(context[:end]) if scored or end >= chunk.position else nothing for end in ends
        ]
