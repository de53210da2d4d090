"""Qwen2 (Yang et al. 2024), which adds biases to queries, keys and values, and Qwen3 (Yang et al. 2025),
which normalises each head of queries and keys instead, with a mixture of experts or without."""

from __future__ import annotations

from typing import Any, Final

from headrace.gpu_engine.models.config import ExpertsConfig, ModelConfig
from headrace.gpu_engine.models.errors import wrong_config
from headrace.gpu_engine.models.hf_config import read_decoder, windows_by_type, windows_everywhere

MOST_EXPERTS: Final = 10_000


def read_qwen2(config: Any) -> ModelConfig:
    """Our config of a transformers `Qwen2Config`."""
    return read_decoder(config, qkv_bias=True, windows=windows_by_type(config))


def read_qwen3(config: Any) -> ModelConfig:
    """Our config of a transformers `Qwen3Config`."""
    return read_decoder(
        config,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        windows=windows_by_type(config),
    )


def read_qwen3_moe(config: Any) -> ModelConfig:
    """Our config of a transformers `Qwen3MoeConfig`."""
    return read_decoder(
        config,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        windows=windows_everywhere(config),
        experts=_read_experts(config),
    )


def _read_experts(config: Any) -> ExpertsConfig | None:
    """Every `decoder_sparse_step`-th layer has experts, but those that the config names as dense."""
    if config.num_experts == 0:
        return None
    for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"):
        if getattr(config, name) < 1:
            raise wrong_config(f"its {name} is {getattr(config, name)}")
    if config.num_experts > MOST_EXPERTS:
        raise wrong_config(f"its num_experts is {config.num_experts}")
    if config.num_experts_per_tok > config.num_experts:
        raise wrong_config(f"each token takes {config.num_experts_per_tok} of {config.num_experts} experts")
    sparse = range(config.decoder_sparse_step - 1, config.num_hidden_layers, config.decoder_sparse_step)
    return ExpertsConfig(
        count=config.num_experts,
        per_token=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
        layers=frozenset(sparse) - frozenset(config.mlp_only_layers),
    )
