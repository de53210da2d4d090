"""Llama (Touvron et al. 2023; Llama 3, SmolLM2 and others of the same architecture)."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.hf_config import read_decoder


def read_llama(config: Any) -> ModelConfig:
    """Our config of a transformers `LlamaConfig`."""
    return read_decoder(
        config,
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )
