"""The decoder that the Llama and Qwen families share; what differs between them is in their config."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import embedding

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.layers import GatedMLP, Linear, RMSNorm
from headrace.gpu_engine.models.rope import Rope, rotate
from headrace.gpu_engine.models.weights.tensors import Tensors


@dataclass(frozen=True, slots=True)
class Attention:
    """Projections around the paged attention of one layer; queries, keys and values are one matrix."""

    layer: int
    head_dim: int
    num_heads: int
    num_kv_heads: int
    qkv: Linear
    output: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None

    def __call__(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], step: StepAttention
    ) -> torch.Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        attended = step.attend(self.layer, rotate(q, rotation), rotate(k, rotation), v)
        return self.output(attended.reshape(len(x), -1))


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and MLP, each on a normalised copy and added back."""

    attention_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: GatedMLP

    def __call__(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], step: StepAttention
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, step)
        return x + self.mlp(self.mlp_norm(x))


class Decoder:
    """Token ids in, hidden states out; logits only for the rows that need them."""

    def __init__(self, config: ModelConfig, tensors: Tensors) -> None:
        self.config = config
        self.rope = Rope(config.rope, config.head_dim)
        self.embeddings = tensors.take("model.embed_tokens.weight")
        self.layers = [_build_layer(config, tensors, i) for i in range(config.num_layers)]
        self.norm = RMSNorm(tensors.take("model.norm.weight"), config.norm_eps)
        self.head = Linear(self.embeddings if config.tied_embeddings else tensors.take("lm_head.weight"))

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype

    def kv_spec(self, block_size: int) -> KVSpec:
        """What an attention backend must hold for this model."""
        return KVSpec(
            num_layers=self.config.num_layers,
            num_heads=self.config.num_heads,
            num_kv_heads=self.config.num_kv_heads,
            head_dim=self.config.head_dim,
            scale=self.config.head_dim**-0.5,
            block_size=block_size,
            dtype=self.dtype,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        """Hidden states [T, hidden] after the last norm, for int64 `token_ids` and `positions` [T]. A row
        with NaN among its own keys or values is NaN itself."""
        x = embedding(token_ids, self.embeddings)
        rotation = self.rope.rotation(positions, self.dtype)
        for layer in self.layers:
            x = layer(x, rotation, step)
        return self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the next token, [rows, vocabulary], for rows of `forward`'s result."""
        return self.head(hidden)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that the model has, as Hugging Face names them."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size),
        "model.norm.weight": (config.hidden_size,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for i in range(config.num_layers):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, has_bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def _build_layer(config: ModelConfig, tensors: Tensors, index: int) -> Layer:
    prefix = f"model.layers.{index}"

    def norm(name: str) -> RMSNorm:
        return RMSNorm(tensors.take(f"{prefix}.{name}.weight"), config.norm_eps)

    def joined(has_bias: bool, *names: str) -> Linear:
        """One matrix of several: a single multiplication is quicker."""
        weight = torch.cat([tensors.take(f"{prefix}.{name}.weight") for name in names])
        bias = torch.cat([tensors.take(f"{prefix}.{name}.bias") for name in names]) if has_bias else None
        return Linear(weight, bias)

    attention = Attention(
        layer=index,
        head_dim=config.head_dim,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        qkv=joined(config.qkv_bias, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        output=joined(config.output_bias, "self_attn.o_proj"),
        q_norm=norm("self_attn.q_norm") if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if config.qk_norm else None,
    )
    mlp = GatedMLP(
        gate_up=joined(config.mlp_bias, "mlp.gate_proj", "mlp.up_proj"),
        down=joined(config.mlp_bias, "mlp.down_proj"),
    )
    return Layer(norm("input_layernorm"), attention, norm("post_attention_layernorm"), mlp)
