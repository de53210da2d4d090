"""Chooses a decoder's parts by its config, and gives them their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headrace.gpu_engine.models.blocks import Attention, Layer, PreNormLayer, SandwichLayer
from headrace.gpu_engine.models.config import ExpertsConfig, ModelConfig
from headrace.gpu_engine.models.experts import MixtureOfExperts
from headrace.gpu_engine.models.layers import (
    ACTIVATIONS,
    Embedding,
    GatedMLP,
    Linear,
    OffsetRMSNorm,
    Part,
    RMSNorm,
    ScaledEmbedding,
    SoftCappedLinear,
)
from headrace.gpu_engine.models.rope import rotate, rotate_start
from headrace.gpu_engine.models.shapes import has_experts
from headrace.gpu_engine.models.weights.tensors import Tensors


def choose_embedding(config: ModelConfig, weight: torch.Tensor) -> Embedding | ScaledEmbedding:
    return (
        Embedding(weight) if config.embedding_scale == 1 else ScaledEmbedding(weight, config.embedding_scale)
    )


def choose_head(config: ModelConfig, weight: torch.Tensor) -> Linear | SoftCappedLinear:
    return Linear(weight) if config.logit_softcap is None else SoftCappedLinear(weight, config.logit_softcap)


def choose_norm(config: ModelConfig, weight: torch.Tensor) -> RMSNorm | OffsetRMSNorm:
    if config.offset_norms:
        return OffsetRMSNorm(1.0 + weight.float(), config.norm_eps)
    return RMSNorm(weight, config.norm_eps)


def build_layer(config: ModelConfig, tensors: Tensors, index: int) -> Layer:
    """Layer `index`, its tensors taken from `tensors`."""
    prefix = f"model.layers.{index}"

    def norm(name: str) -> Part:
        return choose_norm(config, tensors.take(f"{prefix}.{name}.weight"))

    before, attention = norm("input_layernorm"), _build_attention(config, tensors, index)
    mlp = _build_feed_forward(config, tensors, index)
    if not config.post_norms:
        return PreNormLayer(before, attention, norm("post_attention_layernorm"), mlp)
    return SandwichLayer(
        attention_norm=before,
        attention=attention,
        attention_post_norm=norm("post_attention_layernorm"),
        mlp_norm=norm("pre_feedforward_layernorm"),
        mlp=mlp,
        mlp_post_norm=norm("post_feedforward_layernorm"),
    )


def _build_attention(config: ModelConfig, tensors: Tensors, index: int) -> Attention:
    prefix = f"model.layers.{index}.self_attn"

    def head_norm(name: str) -> Part | None:
        return choose_norm(config, tensors.take(f"{prefix}.{name}.weight")) if config.qk_norm else None

    names = ["qkv_proj"] if config.fused_projections else ["q_proj", "k_proj", "v_proj"]
    return Attention(
        layer=index,
        head_dim=config.head_dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        qkv=_join(tensors, [f"{prefix}.{name}" for name in names], config.qkv_bias),
        output=_join(tensors, [f"{prefix}.o_proj"], config.output_bias),
        q_norm=head_norm("q_norm"),
        k_norm=head_norm("k_norm"),
        rotate=rotate if config.rope.share == 1 else rotate_start,
    )


def _build_feed_forward(config: ModelConfig, tensors: Tensors, index: int) -> Part:
    prefix, activation = f"model.layers.{index}.mlp", ACTIVATIONS[config.activation]
    if config.experts is not None and has_experts(config, index):
        return _build_experts(config.experts, tensors, prefix, activation)
    names = ["gate_up_proj"] if config.fused_projections else ["gate_proj", "up_proj"]
    return GatedMLP(
        gate_up=_join(tensors, [f"{prefix}.{name}" for name in names], config.mlp_bias),
        down=_join(tensors, [f"{prefix}.down_proj"], config.mlp_bias),
        activation=activation,
    )


def _build_experts(
    config: ExpertsConfig, tensors: Tensors, prefix: str, activation: Part
) -> MixtureOfExperts:
    experts = [f"{prefix}.experts.{i}" for i in range(config.count)]
    return MixtureOfExperts(
        router=Linear(tensors.take(f"{prefix}.gate.weight")),
        gate_up=torch.stack(
            [_join(tensors, [f"{name}.gate_proj", f"{name}.up_proj"], False).weight for name in experts]
        ),
        down=torch.stack([tensors.take(f"{name}.down_proj.weight") for name in experts]),
        per_token=config.per_token,
        normalised=config.normalised,
        activation=activation,
    )


def _join(tensors: Tensors, names: Sequence[str], has_bias: bool) -> Linear:
    """One matrix of several: a single multiplication is quicker."""

    def joined(kind: str) -> torch.Tensor:
        parts = [tensors.take(f"{name}.{kind}") for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    return Linear(joined("weight"), joined("bias") if has_bias else None)
