"""Which tensors a model has, by its config: what a checkpoint is held to before anything is read."""

from __future__ import annotations

from math import prod

from headrace.gpu_engine.models.config import ExpertsConfig, ModelConfig

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor that the model has, as Hugging Face names them."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for i in range(config.num_layers):
        layer = _norm_shapes(config) | _attention_shapes(config) | _feed_forward_shapes(config, i)
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def count_weights(config: ModelConfig) -> int:
    """How many numbers the whole model has."""
    return sum(map(prod, tensor_shapes(config).values()))


def has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether `layer` has a mixture of experts."""
    return config.experts is not None and layer in config.experts.layers


def _norm_shapes(config: ModelConfig) -> Shapes:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config.post_norms:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    shapes: Shapes = {f"{name}.weight": (config.hidden_size,) for name in names}
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _attention_shapes(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    if config.fused_projections:
        parts = {"qkv_proj": sum(parts.values())}
    shapes: Shapes = {}
    for name, rows in parts.items():
        shapes |= _linear(f"self_attn.{name}", rows, hidden, config.qkv_bias)
    return shapes | _linear("self_attn.o_proj", hidden, queries, config.output_bias)


def _feed_forward_shapes(config: ModelConfig, layer: int) -> Shapes:
    if config.experts is not None and layer in config.experts.layers:
        return _expert_shapes(config.experts, config.hidden_size)
    inner, hidden = config.intermediate_size, config.hidden_size
    parts = (
        {"gate_up_proj": 2 * inner} if config.fused_projections else {"gate_proj": inner, "up_proj": inner}
    )
    shapes: Shapes = {}
    for name, rows in parts.items():
        shapes |= _linear(f"mlp.{name}", rows, hidden, config.mlp_bias)
    return shapes | _linear("mlp.down_proj", hidden, inner, config.mlp_bias)


def _expert_shapes(experts: ExpertsConfig, hidden: int) -> Shapes:
    inner = experts.intermediate_size
    parts = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    shapes: Shapes = {
        f"mlp.experts.{i}.{name}.weight": shape for i in range(experts.count) for name, shape in parts.items()
    }
    return shapes | {"mlp.gate.weight": (experts.count, hidden)}


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (rows, columns)}
    return weight | {f"{name}.bias": (rows,)} if has_bias else weight
