"""The parts that decoders are made of. Each holds its tensors and is called with rows of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
from torch.nn.functional import embedding, gelu, linear, silu

from headrace.gpu_engine.models.config import Activation

Part = Callable[[torch.Tensor], torch.Tensor]
"""Rows in, rows out: a norm, a feed-forward, a head."""

ACTIVATIONS: Final[Mapping[Activation, Part]] = MappingProxyType(
    {"silu": silu, "gelu_tanh": partial(gelu, approximate="tanh")}
)


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token ids int64 [T] → rows of `weight` [vocabulary, hidden]."""

    weight: torch.Tensor

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embedding(token_ids, self.weight)


@dataclass(frozen=True, slots=True)
class ScaledEmbedding:
    """As `Embedding`, times `scale`, which is rounded to the weights' dtype first, as Gemma was trained."""

    weight: torch.Tensor
    scale: float

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        return embedding(token_ids, self.weight) * torch.tensor(self.scale, dtype=self.weight.dtype)


@dataclass(frozen=True, slots=True)
class Linear:
    """x [T, in] → [T, out] by `weight` [out, in] and an optional `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class SoftCappedLinear:
    """As `Linear`, its results bent into ± `cap` (Gemma 2)."""

    weight: torch.Tensor
    cap: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(linear(x, self.weight) / self.cap) * self.cap


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root mean square normalisation over the last dimension (Zhang & Sennrich 2019), in float32."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * exact.to(x.dtype)


@dataclass(frozen=True, slots=True)
class OffsetRMSNorm:
    """As `RMSNorm`, but the result is rounded after the weight, float32 [hidden] with the one that
    checkpoints leave out (Gemma)."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return (exact * self.weight).to(x.dtype)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """The gated feed-forward (Shazeer 2020); gate and up are one matrix, gate first."""

    gate_up: Linear
    down: Linear
    activation: Part = silu

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)
