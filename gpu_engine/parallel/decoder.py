"""A decoder of which each rank computes its share.

embed: own tokens' rows, else zeros ─► sum
each layer:   own heads  ─► own columns of output ─► sum ─┐
              own inner  ─► own columns of down   ─► sum ─┴─► the same hidden states on all ranks
head: own tokens' logits ─► rank 0 puts them side by side
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

import torch
from torch.nn.functional import linear, pad

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.memory.errors import is_out_of_memory
from headrace.gpu_engine.models.blocks import Layer
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.layers import Linear, Part
from headrace.gpu_engine.models.shapes import tensor_shapes
from headrace.gpu_engine.models.weights.tensors import Tensors, TensorSource
from headrace.gpu_engine.parallel.group import RankGroup
from headrace.gpu_engine.parallel.share import Share
from headrace.gpu_engine.parallel.source import SharedSource

NO_MEMORY: Final = "A rank ran out of memory."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowParallelLinear(Linear):
    """A `Linear` of whose inputs, and columns of `weight`, this rank has its share."""

    group: RankGroup = field(kw_only=True)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
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
    Each call waits for the same call on all ranks; see `RankGroup`.

    A rank that runs out of memory takes part in what is left of the step with zeros, lest the others wait for
    it, and all learn of it in a last sum: no rank's step counts then, and the ranks are still in step.
    """

    def __init__(self, share: Share, own: OwnShare, group: RankGroup) -> None:
        self.config = share.config
        self._own, self._group, self._vocabularies = own, group, share.vocabularies
        self._sums = 1 + 2 * share.config.num_layers + 1  # embedding, layers, and who ran out of memory

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this rank's heads."""
        return self._own.kv_spec(block_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """As `CausalDecoder.forward`; the same hidden states on all ranks. Raises MemoryError where another
        rank has too little."""
        hidden = self._own.forward(token_ids, positions, step)
        if self._group.sum(torch.zeros(1)).any():
            raise MemoryError(NO_MEMORY)
        return hidden

    def keep_step(self, rows: int, compute: Callable[[], T]) -> T | None:
        """`compute`s a step of `rows` tokens, which calls `forward` if there are any. None: some rank has too
        little memory for it."""
        due = self._group.sums + (self._sums if rows else 0)
        result = _attempt(compute)
        while self._group.sums < due - 1:
            self._group.sum(self.make_room(rows).zero_())
        if self._group.sums < due:
            self._group.sum(torch.ones(1))
        return result

    def make_room(self, rows: int) -> torch.Tensor:
        """For so many rows of hidden states, [rows, hidden]."""
        return torch.empty(rows, self.config.hidden_size, dtype=self._own.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """On rank 0 as `CausalDecoder.logits`, for rows that it hands out to the others, whose own say only
        how many there are; on those it gives nothing, [rows, 0]. Raises MemoryError on rank 0 where any rank
        has too little."""
        rows = self._group.hand_out(hidden)
        width = max(map(len, self._vocabularies)) + 1  # the last number says who ran out of memory
        own = _attempt(lambda: _widen(self._own.logits(rows), width))
        parts = self._group.collect(rows.new_ones(len(rows), width) if own is None else own)
        if any(part[:, -1].any() for part in parts):
            raise MemoryError(NO_MEMORY)
        cut = [part[:, : len(span)] for part, span in zip(parts, self._vocabularies, strict=False)]
        return torch.cat(cut, dim=1) if cut else rows[:, :0]


def _attempt(compute: Callable[[], T]) -> T | None:
    """What `compute` gives; None where memory runs out, and nothing holds what it had taken then."""
    try:
        return compute()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _widen(logits: torch.Tensor, width: int) -> torch.Tensor:
    """With zeros behind."""
    return pad(logits, (0, width - logits.shape[1]))


def build_share(share: Share, source: TensorSource, dtype: torch.dtype, group: RankGroup) -> Decoder:
    """A decoder of torch parts that has one share alone. Its embedding is summed; its layers are not, nor are
    they read yet."""
    tensors = Tensors(SharedSource(source, share), tensor_shapes(share.config), dtype)
    decoder = Decoder(share.local, tensors, lazily=True)
    decoder.embed = VocabularyEmbedding(decoder.embed, share.vocabulary, group)
    return decoder


def sum_over(group: RankGroup, decoder: Decoder) -> Decoder:
    """The same, each layer read, and its two sums made over all ranks."""
    decoder.layers = [_sum_layer(group, layer) for layer in decoder.take_layers()]
    return decoder


def _sum_layer(group: RankGroup, layer: Layer) -> Layer:
    output = layer.attention.output
    summed = RowParallelLinear(output.weight, output.bias, group=group)
    return replace(layer, attention=replace(layer.attention, output=summed), mlp=Summed(layer.mlp, group))
