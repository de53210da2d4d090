"""Adapters beside torch's own products: each group of rows goes through its adapter's two small matrices.

y = W x                             all rows of the step
y[rows] += scale · B (A x[rows])    for each adapter that is there (Punica, Chen et al. 2023)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import linear

from headrace.gpu_engine.lora.adapter import LowRank
from headrace.gpu_engine.lora.adapters import Adapters
from headrace.gpu_engine.lora.places import Matrix
from headrace.gpu_engine.models.blocks import Layer
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.layers import GatedMLP, Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedLinear(Linear):
    """As `Linear`, with what the adapter of each row adds. `additions`: by the adapter's number."""

    additions: Sequence[Sequence[LowRank]]
    adapters: Adapters

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = linear(x, self.weight, self.bias)
        if self.adapters.rows is not None:
            for number, rows in self.adapters.rows.groups:
                self._add(y, x, torch.from_numpy(rows).long(), self.additions[number])
        return y

    def _add(self, y: torch.Tensor, x: torch.Tensor, rows: torch.Tensor, parts: Sequence[LowRank]) -> None:
        mine = x[rows] if parts else x
        for part in parts:
            columns = y[:, part.start : part.start + len(part.b)]
            columns.index_add_(0, rows, linear(linear(mine, part.a), part.b), alpha=part.scale)


def attach(decoder: Decoder, adapters: Adapters) -> None:
    """From now on `decoder` computes each row with its adapter."""
    decoder.layers = [_adapt(layer, adapters, i) for i, layer in enumerate(decoder.layers)]
    adapters.release()


def _adapt(layer: Layer, adapters: Adapters, index: int) -> Layer:
    def adapted(part: Linear, matrix: Matrix) -> Linear:
        if not adapters.add_to(index, matrix):
            return part
        additions = [
            [_like(part.weight, own) for own in adapter.layers[index].get(matrix, ())]
            for adapter in adapters.loaded
        ]
        return AdaptedLinear(weight=part.weight, bias=part.bias, additions=additions, adapters=adapters)

    attention = replace(
        layer.attention,
        qkv=adapted(layer.attention.qkv, "qkv"),
        output=adapted(layer.attention.output, "output"),
    )
    mlp = layer.mlp
    if isinstance(mlp, GatedMLP):
        mlp = replace(mlp, gate_up=adapted(mlp.gate_up, "gate_up"), down=adapted(mlp.down, "down"))
    return replace(layer, attention=attention, mlp=mlp)


def _like(weight: torch.Tensor, part: LowRank) -> LowRank:
    return replace(part, a=part.a.to(weight.dtype), b=part.b.to(weight.dtype))
