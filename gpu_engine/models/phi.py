"""Phi-3 and the later Phi models of its architecture (Abdin et al. 2024): Llama with fused projections, and
LongRoPE in those for long contexts."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.hf_config import head_dim_of, read_decoder, windows_everywhere
from headrace.gpu_engine.models.hf_rope import read_rope


def read_phi3(config: Any) -> ModelConfig:
    """Our config of a transformers `Phi3Config`.

    Of a model with LongRoPE it is the one for sequences up to its original context; `stretch` gives the
    other.
    """
    rope = read_rope(
        config.rope_parameters,
        max_context=config.max_position_embeddings,
        head_dim=head_dim_of(config),
        share=config.rope_parameters.get("partial_rotary_factor", 1.0),
    )
    longest = config.max_position_embeddings
    is_long = rope.kind == "longrope" and longest > rope.original_context
    return read_decoder(
        config,
        rope=rope,
        max_context=rope.original_context if is_long else longest,
        long_context=longest if is_long else None,
        fused_projections=True,
        windows=windows_everywhere(config),
    )
