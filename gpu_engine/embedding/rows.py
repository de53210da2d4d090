"""Hands the hidden states of a step to the texts that want vectors of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.gpu_engine.scheduling.step import Chunk


def pool_rows(chunks: Sequence[Chunk], hidden: torch.Tensor, ends: torch.Tensor) -> dict[str, list[float]]:
    """Vectors, by request id, of the texts that this step completes. `hidden` [T, hidden]: the rows of all
    chunks, which end at `ends` [S]."""
    vectors: dict[str, list[float]] = {}
    for i, chunk in enumerate(chunks):
        pooler = None if chunk.controls is None else chunk.controls.pooler
        if pooler is None:
            continue
        wanted = pooler.wanted(chunk.start, len(chunk.token_ids))
        first = int(ends[i]) - len(chunk.token_ids) - chunk.start  # where the row of position 0 would be
        rows = hidden[first + wanted.start : first + wanted.stop] if wanted else hidden[:0]
        pooler.add(rows.float().cpu().numpy())
        vector = pooler.take()
        if vector is not None:
            vectors[chunk.request_id] = vector
    return vectors
