"""Attention over paged KV memory: what every backend takes and gives.

A backend owns its KV cache, in a layout of its own. Each step is announced once (`begin`), so that a
backend can prepare what all layers share; then every layer makes one call, which first writes the step's
K and V and then attends, so that a token sees itself and all earlier ones of its request.

    step = backend.begin(batch)            # once a step: index arithmetic, masks, grids
    out = step.attend(layer, q, k, v)      # once a layer

The ragged layout is that of vLLM (Kwon et al. 2023, "PagedAttention") and FlashAttention's
variable-length interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What the layers need of the KV cache. `num_heads` is a multiple of `num_kv_heads`: query head h
    reads KV head h // (num_heads // num_kv_heads). `scale` multiplies the scores.

    `windows`: how many tokens each layer sees, the token itself included (None: all before it); empty where
    no layer has one. `softcap` bends the scaled scores to softcap * tanh(score / softcap) (Gemma 2).
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    block_size: int
    dtype: torch.dtype
    windows: tuple[int | None, ...] = ()
    softcap: float | None = None

    def window(self, layer: int) -> int | None:
        """How many tokens a token of `layer` sees; None: all."""
        return self.windows[layer] if self.windows else None


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """The shape of one step: S sequences, T tokens in all, one sequence after the other.

    All tensors lie on the model's device. The first `num_decodes` sequences bring one token each; the
    others may bring any number.

    query_start   int32 [S + 1]  tokens of sequence s are rows query_start[s] … query_start[s + 1] - 1
    context_lens  int32 [S]      tokens a sequence has after this step, those of the step included
    block_tables  int32 [S, B]   blocks of a sequence in the order of its positions, padded with block 0
    slot_mapping  int64 [T]      where a token's K and V go: block * block_size + offset
    positions     int64 [T]      position of a token in its sequence

    Block 0 is the null block. No table of a live sequence holds it but as padding; a padded token has a
    slot within it. Backends may write there, and must not let what stands there reach any result.
    """

    query_start: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    positions: torch.Tensor
    num_decodes: int
    max_query_len: int
    max_context_len: int


class StepAttention(Protocol):
    """One step of a backend, valid until the next `begin`."""

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Writes `k` and `v` [T, KVH, D] to their slots and attends causally from `q` [T, H, D] over each
        token's own sequence, or as much of it as the layer's window shows; returns [T, H, D] in q's dtype.
        Keys and queries are already rotated. The inputs are contiguous in their last dimension only. Rows
        of padded tokens hold anything."""


class AttentionBackend(Protocol):
    """KV memory of `num_blocks` blocks, and attention over it. Not thread-safe.

    What a slot held before its request wrote it, NaN included, never reaches a result: a block is handed
    from one request to the next without being cleared.
    """

    @property
    def num_blocks(self) -> int: ...

    @property
    def storage(self) -> Sequence[torch.Tensor]:
        """All that a block holds: views of the cache [layers, blocks, …], so that blocks can be copied."""

    def begin(self, batch: RaggedBatch) -> StepAttention: ...


class BackendFactory(Protocol):
    """Makes a backend; a backend's class is one. `block_bytes` is asked first, to divide the memory."""

    def block_bytes(self, spec: KVSpec) -> int:
        """Bytes of KV memory that one block takes over all layers."""

    def __call__(self, spec: KVSpec, num_blocks: int) -> AttentionBackend: ...
