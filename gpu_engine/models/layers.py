"""The parts that decoders are made of. Each holds its tensors and is called with rows of a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import linear, silu


@dataclass(frozen=True, slots=True)
class Linear:
    """x [T, in] → [T, out] by `weight` [out, in] and an optional `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


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
class GatedMLP:
    """The SwiGLU feed-forward (Shazeer 2020); gate and up are one matrix, gate first."""

    gate_up: Linear
    down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(silu(gate) * up)
