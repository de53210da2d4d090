"""Paged attention in plain torch: the fallback everywhere, and the reference that kernels are held to.

Sequences that bring equally many tokens and have contexts of similar length are attended together: their
keys and values are gathered into a padded tensor, and one call of torch's scaled dot product attention
serves the group. Padding reads a row of zeros behind the last block that nobody ever writes, so neither
the null block nor what an earlier request left behind can reach a result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

from headrace.gpu_engine.attention.contract import KVSpec, RaggedBatch

SMALLEST_BUCKET: Final = 64
"""Contexts up to this length are padded to one another; longer ones at most to twice their length."""


@dataclass(frozen=True, slots=True)
class Group:
    """B sequences of n tokens each, padded to a context of C.

    rows     int64 [B, n]            their tokens' rows in the step
    slots    int64 [B, C]            where their keys and values stand; the row of zeros beyond the context
    visible  bool  [B, 1, G * n, C]  which keys a token may see, by the window of a layer; once for each of
                                     the G query heads that share a KV head
    """

    rows: torch.Tensor
    slots: torch.Tensor
    visible: Mapping[int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class SoftCapped:
    """Scaled dot product attention whose scores are bent below `cap`, which torch's own cannot do."""

    cap: float

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attn_mask: torch.Tensor, scale: float
    ) -> torch.Tensor:
        scores = self.cap * torch.tanh(q @ k.transpose(2, 3) * (scale / self.cap))
        weights = scores.masked_fill(~attn_mask, -torch.inf).softmax(dim=-1, dtype=torch.float32)
        return weights.to(q.dtype) @ v


class ReferenceAttention:
    """KV cache [layers, slots + 1, KVH, D], the last row being zeros. Any dtype that torch can attend in."""

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        shape = (spec.num_layers, num_blocks * spec.block_size + 1, spec.num_kv_heads, spec.head_dim)
        self.spec = spec
        self.attention = scaled_dot_product_attention if spec.softcap is None else SoftCapped(spec.softcap)
        self.keys = torch.zeros(shape, dtype=spec.dtype)
        self.values = torch.zeros(shape, dtype=spec.dtype)

    @staticmethod
    def block_bytes(spec: KVSpec) -> int:
        """Bytes of one block over all layers, keys and values."""
        row = spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
        return 2 * spec.num_layers * spec.block_size * row

    @property
    def num_blocks(self) -> int:
        return (self.keys.shape[1] - 1) // self.spec.block_size

    @property
    def storage(self) -> tuple[torch.Tensor, ...]:
        shape = (self.num_blocks, self.spec.block_size)
        return tuple(cache[:, :-1].unflatten(1, shape) for cache in (self.keys, self.values))

    def begin(self, batch: RaggedBatch) -> ReferenceStep:
        zeros = self.keys.shape[1] - 1
        groups = [_make_group(batch, members, self.spec, zeros) for members in _similar(batch)]
        return ReferenceStep(self, batch, groups)


class ReferenceStep:
    """One step over the cache of a `ReferenceAttention`."""

    def __init__(self, backend: ReferenceAttention, batch: RaggedBatch, groups: list[Group]) -> None:
        self.backend = backend
        self.batch = batch
        self.groups = groups

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys, values = self.backend.keys[layer], self.backend.values[layer]
        keys[self.batch.slot_mapping] = k
        values[self.batch.slot_mapping] = v
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        window = self.backend.spec.window(layer)
        for group in self.groups:
            past = keys[group.slots], values[group.slots]
            out[group.rows] = self._attend_group(q[group.rows], *past, group.visible[window])
        return out

    def _attend_group(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """q [B, n, H, D] over keys and values [B, C, KVH, D] → [B, n, H, D]. The query heads that share a
        KV head become further rows of it, so that keys and values are not copied for each of them."""
        b, n, h, d = q.shape
        shared = h // self.backend.spec.num_kv_heads
        q = q.view(b, n, -1, shared, d).permute(0, 2, 3, 1, 4).reshape(b, -1, shared * n, d)
        out = self.backend.attention(
            q,
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=visible,
            scale=self.backend.spec.scale,
        )
        return out.view(b, -1, shared, n, d).permute(0, 3, 1, 2, 4).reshape(b, n, h, d)


def _similar(batch: RaggedBatch) -> list[list[int]]:
    """Sequences by number of tokens and size of context, so that padding wastes little."""
    starts, contexts = batch.query_start.tolist(), batch.context_lens.tolist()
    groups: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for s, context in enumerate(contexts):
        length = starts[s + 1] - starts[s]
        bucket = max(context, SMALLEST_BUCKET).bit_length() if length == 1 else context
        groups[length, bucket].append(s)
    return [members for (length, _), members in groups.items() if length > 0]


def _make_group(batch: RaggedBatch, members: list[int], spec: KVSpec, zeros: int) -> Group:
    index = torch.tensor(members)
    starts = batch.query_start[index].long()
    n = int(batch.query_start[members[0] + 1]) - int(starts[0])
    rows = starts[:, None] + torch.arange(n)
    contexts = batch.context_lens[index]
    at = torch.arange(int(contexts.max()))
    blocks = batch.block_tables[index][:, at // spec.block_size].long()
    slots = blocks * spec.block_size + at % spec.block_size
    slots.masked_fill_(at >= contexts[:, None], zeros)
    visible = _show(at, batch.positions[rows][..., None], spec)
    return Group(rows, slots, visible)


def _show(at: torch.Tensor, positions: torch.Tensor, spec: KVSpec) -> dict[int | None, torch.Tensor]:
    """Which of the keys at [C] tokens at `positions` [B, n, 1] see, for each window that a layer has."""
    past = at <= positions
    windows = set(spec.windows or (None,))
    seen = {window: past if window is None else past & (at > positions - window) for window in windows}
    shared = spec.num_heads // spec.num_kv_heads
    return {window: mask[:, None].repeat(1, 1, shared, 1) for window, mask in seen.items()}
