"""Paged attention in C++ for fp32 caches: in place over the blocks, without gathering or padding.

The kernel is `kernels/cpu/paged_attention.cpp`; it is built by g++ at first use. Where there is no compiler,
or where the shape does not suit it (`suits`), the pure torch reference serves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from headrace.gpu_engine.attention.contract import KVSpec, RaggedBatch
from headrace.gpu_engine.native.library import library

LANES: Final = 8
"""Head size and block size must be multiples of the kernel's vectors."""


def suits(spec: KVSpec) -> bool:
    """Whether the kernel can serve this cache."""
    plain = spec.softcap is None and not any(spec.windows)
    whole_vectors = spec.head_dim % LANES == 0 and spec.block_size % LANES == 0
    return plain and whole_vectors and spec.dtype == torch.float32


def available() -> bool:
    """Whether the kernels are built, or can be."""
    return library() is not None


class CpuAttention:
    """Keys [layers, blocks, KVH, D, block], values [layers, blocks, KVH, block, D], fp32.

    Threads: as many as torch uses when the backend is made, and the same ones.
    """

    def __init__(self, spec: KVSpec, num_blocks: int) -> None:
        kernels = library()
        assert kernels is not None, "ask available() first"
        assert suits(spec), spec
        self.spec = spec
        self.kernel: Callable[..., None] = kernels.paged_attention
        lanes = (spec.num_layers, num_blocks, spec.num_kv_heads)
        self.keys = torch.zeros(*lanes, spec.head_dim, spec.block_size)
        self.values = torch.zeros(*lanes, spec.block_size, spec.head_dim)
        self.threads = torch.get_num_threads()

    @staticmethod
    def block_bytes(spec: KVSpec) -> int:
        """Bytes of one block over all layers, keys and values."""
        return 2 * spec.num_layers * spec.block_size * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize

    @property
    def num_blocks(self) -> int:
        return self.keys.shape[1]

    @property
    def storage(self) -> tuple[torch.Tensor, ...]:
        return (self.keys, self.values)

    def begin(self, batch: RaggedBatch) -> CpuStep:
        return CpuStep(self, batch)


class CpuStep:
    """One step over the cache of a `CpuAttention`."""

    def __init__(self, backend: CpuAttention, batch: RaggedBatch) -> None:
        self.backend = backend
        # Held here, since the kernel is given bare addresses.
        self.index = [
            batch.slot_mapping.long().contiguous(),
            batch.query_start.int().contiguous(),
            batch.context_lens.int().contiguous(),
            batch.block_tables.int().contiguous(),
        ]
        self.sequences, self.table_stride = batch.block_tables.shape

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        spec, backend = self.backend.spec, self.backend
        inputs = [tensor.contiguous() for tensor in (q, k, v)]
        out = torch.empty_like(inputs[0])
        tensors = (*inputs, backend.keys[layer], backend.values[layer], *self.index, out)
        backend.kernel(
            *(tensor.data_ptr() for tensor in tensors),
            *(q.shape[0], self.sequences, spec.num_heads, spec.num_kv_heads, spec.head_dim),
            *(spec.block_size, self.table_stride, spec.scale, backend.threads),
        )
        return out
