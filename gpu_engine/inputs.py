"""From the scheduler's plan to the tensors of one ragged forward, by array arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, takewhile

import numpy as np
import numpy.typing as npt
import torch

from headrace.gpu_engine.attention.contract import RaggedBatch
from headrace.gpu_engine.scheduling.step import Chunk

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """`token_ids` int64 [T]; `ends` int64 [S], the row behind each chunk's last; the rest in `batch`."""

    token_ids: torch.Tensor
    ends: torch.Tensor
    batch: RaggedBatch


def build_inputs(chunks: Sequence[Chunk], block_size: int) -> StepInputs:
    """Inputs for `chunks`, none of them empty, in their order."""
    sizes = [len(chunk.token_ids) for chunk in chunks]
    lengths, starts = np.array(sizes), np.array([chunk.start for chunk in chunks])
    query_start = np.array([0, *accumulate(sizes)])
    token_ids = np.fromiter(chain.from_iterable(c.token_ids for c in chunks), np.int64, query_start[-1])
    owners, positions = np.arange(len(chunks)), starts
    if len(token_ids) > len(chunks):  # not only decodes
        owners = np.repeat(owners, lengths)
        positions = np.arange(len(token_ids)) - query_start[owners] + starts[owners]
    tables = _pad([chunk.block_table for chunk in chunks])
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    context_lens = starts + lengths
    batch = RaggedBatch(
        query_start=_int32(query_start),
        context_lens=_int32(context_lens),
        block_tables=_int32(tables),
        slot_mapping=torch.from_numpy(slots),
        positions=torch.from_numpy(positions),
        num_decodes=sum(1 for _ in takewhile(lambda size: size == 1, sizes)),
        max_query_len=max(sizes),
        max_context_len=int(context_lens.max()),
    )
    return StepInputs(torch.from_numpy(token_ids), torch.from_numpy(query_start[1:]), batch)


def _pad(tables: Sequence[Sequence[int]]) -> Ints:
    """[S, B], padded with the null block."""
    padded = np.zeros((len(tables), max(len(table) for table in tables)), np.int64)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded


def _int32(values: Ints) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))
