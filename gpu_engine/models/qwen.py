"""Qwen2 (Yang et al. 2024), which adds biases to queries, keys and values, and Qwen3 (Yang et al. 2025),
which normalises each head of queries and keys instead."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.hf_config import read_decoder


def read_qwen2(config: Any) -> ModelConfig:
    """Our config of a transformers `Qwen2Config`."""
    return read_decoder(config, qkv_bias=True)


def read_qwen3(config: Any) -> ModelConfig:
    """Our config of a transformers `Qwen3Config`."""
    return read_decoder(
        config, qkv_bias=config.attention_bias, output_bias=config.attention_bias, qk_norm=True
    )
