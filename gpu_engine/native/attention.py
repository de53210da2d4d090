"""KV memory as the native kernels read it, and attention over it by itself or within a native decoder."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import torch

from headrace.gpu_engine.attention.contract import KVSpec, RaggedBatch
from headrace.gpu_engine.native.declarations import AttentionStruct, CacheFormat, StepStruct
from headrace.gpu_engine.native.library import library
from headrace.gpu_engine.native.pool import Pool

CACHE_FORMATS: Final = {torch.float32: CacheFormat.FLOAT32, torch.bfloat16: CacheFormat.BF16}


def suits(spec: KVSpec) -> bool:
    """Whether the kernels are there and can serve this cache."""
    kernels = library()
    if kernels is None or spec.dtype not in CACHE_FORMATS:
        return False
    lanes: int = kernels.headrace_lanes()
    return spec.head_dim % lanes == 0 and spec.block_size % lanes == 0


@dataclass(frozen=True, slots=True)
class NativeMemory:
    """Makes KV memory whose attention runs on the threads of `pool`; a `BackendFactory`."""

    pool: Pool

    def block_bytes(self, spec: KVSpec) -> int:
        """Bytes of one block over all layers, keys and values."""
        return 2 * spec.num_layers * spec.block_size * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize

    def __call__(self, spec: KVSpec, num_blocks: int) -> NativeAttention:
        return NativeAttention(self.pool, spec, num_blocks)


class NativeAttention:
    """Keys [layers, blocks, KVH, D, block], values [layers, blocks, KVH, block, D], float32 or bfloat16."""

    def __init__(self, pool: Pool, spec: KVSpec, num_blocks: int) -> None:
        lanes = (spec.num_layers, num_blocks, spec.num_kv_heads)
        self.pool, self.spec = pool, spec
        self.keys = torch.zeros(*lanes, spec.head_dim, spec.block_size, dtype=spec.dtype)
        self.values = torch.zeros(*lanes, spec.block_size, spec.head_dim, dtype=spec.dtype)

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[1]

    @property
    def storage(self) -> tuple[torch.Tensor, ...]:
        return (self.keys, self.values)

    def begin(self, batch: RaggedBatch) -> NativeStep:
        return NativeStep(self, batch)

    def describe(self, layer: int) -> AttentionStruct:
        """What the kernels need to know of a layer, but for norms and rotations."""
        spec = self.spec
        return AttentionStruct(
            keys=self.keys[layer].data_ptr(),
            values=self.values[layer].data_ptr(),
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_size=spec.head_dim,
            block=spec.block_size,
            window=spec.window(layer) or 0,
            cache_format=CACHE_FORMATS[spec.dtype].value,
            scale=spec.scale,
            soft_cap=spec.softcap or 0.0,
        )


class NativeStep:
    """One step over the cache of a `NativeAttention`. `struct` is what the kernels are given, `longest` the
    tokens of its longest context."""

    def __init__(self, backend: NativeAttention, batch: RaggedBatch) -> None:
        self.backend = backend
        # Held here, since the kernels are given bare addresses.
        self._index = [
            batch.slot_mapping.contiguous(),
            batch.query_start.contiguous(),
            batch.context_lens.contiguous(),
            batch.block_tables.contiguous(),
            batch.positions.contiguous(),
        ]
        slots, starts, contexts, tables, positions = (tensor.data_ptr() for tensor in self._index)
        self.longest = batch.max_context_len
        self.struct = StepStruct(
            slots=slots,
            query_start=starts,
            context_lens=contexts,
            block_tables=tables,
            positions=positions,
            tokens=len(batch.slot_mapping),
            sequences=len(batch.block_tables),
            table_stride=batch.block_tables.shape[1],
        )

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """For one layer by itself; the native decoder attends within its own call."""
        described = self.backend.describe(layer)  # without norms, and no part of a head is rotated again
        return self.attend_as(described, torch.cat((q, k, v), dim=1).float()).to(q.dtype)

    def attend_as(self, layer: AttentionStruct, qkv: torch.Tensor) -> torch.Tensor:
        """As `layer` says: float32 rows of queries, keys and values, [T, H + 2 KVH, D] in all → [T, H, D]."""
        pool, spec = self.backend.pool, self.backend.spec
        out = torch.empty(len(qkv), spec.num_heads, spec.head_dim)
        pool.kernels.headrace_attend(
            pool.handle, ctypes.byref(layer), ctypes.byref(self.struct), qkv.data_ptr(), out.data_ptr()
        )
        return out
