"""What a decoder needs to know of its model, whichever family or file format it comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021). `kind` is `default`, `linear` or `llama3`, with the
    fields of the same name in a Hugging Face config. `divisors` [head_dim / 2], where given, divide the
    frequencies directly: GGUF files hold scaled embeddings that way."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama kind: pre-norm, rotary positions, grouped-query attention, gated MLP.

    `qk_norm` normalises each head of queries and keys before the rotation (Qwen3). `max_context` is the
    longest sequence the model was made for, in tokens.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
