"""LongRoPE (Ding et al. 2024) for long contexts.

A model with it turns sequences up to its original context by one set of frequencies, and longer ones by
another, from their first token on: a sequence that crosses the line would need all its keys anew, and could
share none with shorter ones. So one engine serves by one set. It is the short one, whose answers within the
original context are the model's best, unless the user asks for longer sequences.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.gpu_engine.models.config import ModelConfig


def stretch(config: ModelConfig, longest: int | None) -> ModelConfig:
    """`config` as it is for sequences of `longest` tokens, where the model can have them so long."""
    if longest is None or config.long_context is None or longest <= config.max_context:
        return config
    rope = replace(config.rope, divisors=config.rope.long_divisors)
    return replace(config, rope=rope, max_context=config.long_context)
