"""A decoder of which each rank computes its share.

embed: own tokens' rows, else zeros ─► sum
each layer:   own heads  ─► own columns of output ─► sum ─┐
              own inner  ─► own columns of down   ─► sum ─┴─► the same hidden states on all ranks
head: own tokens' logits ─► rank 0 puts them side by side
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.nn.functional import linear, pad

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.models.blocks import Layer
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.layers import GatedMLP, Linear, Part
from headrace.gpu_engine.models.shapes import tensor_shapes
from headrace.gpu_engine.models.weights.tensors import Tensors, TensorSource
from headrace.gpu_engine.parallel.group import RankGroup
from headrace.gpu_engine.parallel.share import Share
from headrace.gpu_engine.parallel.source import SharedSource


@dataclass(frozen=True, slots=True)
class RowParallelLinear(Linear):
    """A `Linear` of whose inputs, and columns of `weight`, this rank has its share."""

    group: RankGroup | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert self.group is not None
        return self.group.sum(linear(x, self.weight, self.bias))


@dataclass(frozen=True, slots=True)
class Summed:
    """A part whose results are summed over the ranks."""

    part: Part
    group: RankGroup

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.group.sum(self.part(x))


@dataclass(frozen=True, slots=True)
class VocabularyEmbedding:
    """Token ids int64 [T] → [T, hidden], of which `part` has the rows of the ids in `span`."""

    part: Part
    span: range
    group: RankGroup

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        own = token_ids - self.span.start
        x = self.part(own.clamp(0, len(self.span) - 1))
        foreign = (own < 0) | (own >= len(self.span))
        return self.group.sum(x.masked_fill(foreign[:, None], 0))


class OwnShare(CausalDecoder, Protocol):
    """A decoder of one rank's heads, inner dimensions and tokens, which sums with the other ranks where it
    must; its logits are those of the rank's tokens. `dtype`: of its hidden states."""

    @property
    def dtype(self) -> torch.dtype: ...


class SharedDecoder:
    """The decoder that the ranks' shares are together: on rank 0 as any other, on the rest without logits.
    Each call waits for the same call on all ranks; see `RankGroup`."""

    def __init__(self, share: Share, own: OwnShare, group: RankGroup) -> None:
        self.config = share.config
        self._own, self._group, self._vocabularies = own, group, share.vocabularies

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this rank's heads."""
        return self._own.kv_spec(block_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """As `CausalDecoder.forward`; the same hidden states on all ranks."""
        return self._own.forward(token_ids, positions, step)

    def make_room(self, rows: int) -> torch.Tensor:
        """For so many rows of hidden states, [rows, hidden]."""
        return torch.empty(rows, self.config.hidden_size, dtype=self._own.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """On rank 0 as `CausalDecoder.logits`, for rows that it hands out to the others, whose own say only
        how many there are; on those it gives nothing, [rows, 0]."""
        own = self._own.logits(self._group.hand_out(hidden))
        widest = max(map(len, self._vocabularies))
        parts = self._group.collect(pad(own, (0, widest - own.shape[1])))
        cut = [part[:, : len(span)] for part, span in zip(parts, self._vocabularies, strict=False)]
        return torch.cat(cut, dim=1) if cut else own[:, :0]


def build_share(share: Share, source: TensorSource, dtype: torch.dtype, group: RankGroup) -> Decoder:
    """A decoder of torch parts that has one share alone. Its embedding is summed, its layers are not yet."""
    decoder = Decoder(share.local, Tensors(SharedSource(source, share), tensor_shapes(share.config), dtype))
    decoder.embed = VocabularyEmbedding(decoder.embed, share.vocabulary, group)
    return decoder


def sum_over(group: RankGroup, decoder: Decoder) -> Decoder:
    """The same, each layer's two sums made over all ranks."""
    decoder.layers = [_sum_layer(group, layer) for layer in decoder.layers]
    return decoder


def _sum_layer(group: RankGroup, layer: Layer) -> Layer:
    """The layer, its two sums made over all ranks."""
    attention, mlp = layer.attention, layer.mlp
    attention = replace(attention, output=_row_parallel(attention.output, group))
    if isinstance(mlp, GatedMLP):
        mlp = replace(mlp, down=_row_parallel(mlp.down, group))
    else:
        mlp = Summed(mlp, group)
    return replace(layer, attention=attention, mlp=mlp)


def _row_parallel(part: Linear, group: RankGroup) -> RowParallelLinear:
    return RowParallelLinear(part.weight, part.bias, group)
