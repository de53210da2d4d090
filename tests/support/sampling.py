"""Rows of logits through the engine's own head, as a step has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sampling.head import SamplingHead
from headrace.gpu_engine.scheduling.step import Chunk


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], positions: Iterable[int]
) -> list[int | None]:
    """Next token of each row of `logits` [R, V]; None where a row fails. `positions`: of these tokens."""
    chunks = [
        Chunk(str(row), [0], position - 1, [], True, own)
        for row, (own, position) in enumerate(zip(params, positions, strict=True))
    ]
    sampled = SamplingHead(lambda rows: rows).sample(chunks, logits, torch.arange(1, len(chunks) + 1))
    return [sampled.tokens.get(chunk.request_id, [None])[0] for chunk in chunks]
