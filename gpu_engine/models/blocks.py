"""Attention and the two kinds of layer that the families' decoders are stacked from."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headrace.gpu_engine.attention.contract import StepAttention
from headrace.gpu_engine.models.layers import Linear, Part
from headrace.gpu_engine.models.rope import Rotate, Rotation


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections around the paged attention of one layer; queries, keys and values are one matrix."""

    layer: int
    head_dim: int
    num_heads: int
    num_kv_heads: int
    qkv: Linear
    output: Linear
    q_norm: Part | None
    k_norm: Part | None
    rotate: Rotate

    def __call__(self, x: torch.Tensor, rotation: Rotation, step: StepAttention) -> torch.Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        attended = step.attend(self.layer, self.rotate(q, rotation), self.rotate(k, rotation), v)
        return self.output(attended.reshape(len(x), -1))


@dataclass(frozen=True, slots=True)
class PreNormLayer:
    """Attention and MLP, each on a normalised copy and added back."""

    attention_norm: Part
    attention: Attention
    mlp_norm: Part
    mlp: Part

    def __call__(self, x: torch.Tensor, rotation: Rotation, step: StepAttention) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, step)
        return x + self.mlp(self.mlp_norm(x))


@dataclass(frozen=True, slots=True)
class SandwichLayer:
    """As `PreNormLayer`, with what attention and MLP give normalised again before it is added (Gemma)."""

    attention_norm: Part
    attention: Attention
    attention_post_norm: Part
    mlp_norm: Part
    mlp: Part
    mlp_post_norm: Part

    def __call__(self, x: torch.Tensor, rotation: Rotation, step: StepAttention) -> torch.Tensor:
        x = x + self.attention_post_norm(self.attention(self.attention_norm(x), rotation, step))
        return x + self.mlp_post_norm(self.mlp(self.mlp_norm(x)))


Layer = PreNormLayer | SandwichLayer
