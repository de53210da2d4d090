"""Gemma 2 (Gemma Team 2024) and the text part of Gemma 3 (Gemma Team 2025): scaled embeddings, norms around
attention and MLP, layers that see a window between layers that see all. Gemma 2 caps its scores and logits;
Gemma 3 normalises heads, and turns its local layers by a rotary embedding of their own."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError, wrong_config
from headrace.gpu_engine.models.hf_config import (
    FULL,
    SLIDING,
    read_activation,
    read_decoder,
    read_whole_rope,
    windows_by_type,
)


def read_gemma2(config: Any) -> ModelConfig:
    """Our config of a transformers `Gemma2Config`."""
    return _read_gemma(config, rope=read_whole_rope(config, config.rope_parameters))


def read_gemma3(config: Any) -> ModelConfig:
    """Our config of a transformers `Gemma3TextConfig`."""
    local = frozenset(i for i, kind in enumerate(config.layer_types) if kind == SLIDING)
    return _read_gemma(
        config,
        qk_norm=True,
        rope=read_whole_rope(config, config.rope_parameters[FULL]),
        local_rope=read_whole_rope(config, config.rope_parameters[SLIDING]),
        local_layers=local,
    )


def _read_gemma(config: Any, **family: Any) -> ModelConfig:
    if getattr(config, "use_bidirectional_attention", None):
        raise ModelError("The model attends in both directions, so it cannot write token by token.")
    for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise wrong_config(f"its {name} is {value}")
    return read_decoder(
        config,
        windows=windows_by_type(config),
        activation=read_activation(config.hidden_activation),
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        offset_norms=True,
        post_norms=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=config.query_pre_attn_scalar**-0.5,
        attention_softcap=config.attn_logit_softcapping,
        logit_softcap=config.final_logit_softcapping,
        **family,
    )
