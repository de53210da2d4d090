"""What a decoder needs to know of its model, whichever family or file format it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021). `kind` is `default`, `linear`, `llama3`, `yarn` or
    `longrope`, with the fields of the same name in a Hugging Face config.

    `share`: the part of each head that is rotated, from its start. `divisors` [rotated / 2] divide the
    frequencies directly: GGUF files hold scaled embeddings that way, and LongRoPE (Ding et al. 2024) its
    factors for contexts up to `original_context`; `long_divisors` are those for longer ones.
    `attention_factor` multiplies cosines and sines.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    original_context: int = 0
    share: float = 1.0
    divisors: tuple[float, ...] = ()
    long_divisors: tuple[float, ...] = ()
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """A mixture of experts (Shazeer et al. 2017) in place of the MLP of `layers`: of `count` gated MLPs of
    `intermediate_size` each token takes the `per_token` likeliest, weighted by their probabilities, which
    are made to sum to one where `normalised`."""

    count: int
    per_token: int
    intermediate_size: int
    normalised: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama kind: pre-norm, rotary positions, grouped-query attention, gated MLP.

    `max_context` is the longest sequence the model was made for, in tokens. What families add:

    qk_norm            each head of queries and keys is normalised before the rotation (Qwen3)
    fused_projections  queries, keys and values are one tensor, gate and up another (Phi-3)
    activation         of the gate
    offset_norms       weights of norms are stored less one, and multiplied in float32 (Gemma)
    post_norms         what attention and MLP give is normalised too, before it is added (Gemma)
    embedding_scale    multiplies the embeddings of tokens (Gemma)
    attention_scale    multiplies the scores; None: head_dim ** -0.5
    windows            tokens that each layer sees (None: all); empty where no layer has a window
    local_layers       the layers that turn by `local_rope` (Gemma 3: those with a window)
    local_rope         their rotary embedding
    attention_softcap  bends scores to cap * tanh(score / cap), as `logit_softcap` does logits (Gemma 2)
    experts            a mixture of experts in some layers
    long_context       the longest sequence with the long factors of LongRoPE (Phi-3); see `stretch`
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
    fused_projections: bool = False
    activation: Activation = "silu"
    offset_norms: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    windows: tuple[int | None, ...] = ()
    local_layers: frozenset[int] = frozenset()
    local_rope: RopeConfig | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    experts: ExpertsConfig | None = None
    long_context: int | None = None
