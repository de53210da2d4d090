"""How llama.cpp's converter names and arranges the tensors of each architecture.

A tensor of a GGUF file becomes one or several of Hugging Face's: the experts of a layer stand in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from headrace.gpu_engine.models.config import ModelConfig

Floats = npt.NDArray[np.float32]

NAMES: Final = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)

SANDWICH_NAMES: Final = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

FUSED_NAMES: Final = NAMES | {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}

EXPERT_NAMES: Final = NAMES | {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
"""The braces stand for each expert in turn, the first dimension of the tensor."""

Arrange = Callable[[str, Floats, ModelConfig], Floats]
"""From the order of values in the file to Hugging Face's, by our name of the tensor."""


def permute(weights: Floats, heads: int) -> Floats:
    """Rows of a query or key matrix from Hugging Face's order, where row i of a head turns with row
    i + half, to ggml's Llama order, where neighbours turn together. The inverse of `unpermute`."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def unpermute(weights: Floats, heads: int) -> Floats:
    """ggml's Llama order of rows back to Hugging Face's; see `permute`."""
    return weights.reshape(heads, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _unpermute_heads(name: str, weights: Floats, config: ModelConfig) -> Floats:
    if ".q_proj." in name:
        return unpermute(weights, config.num_heads)
    return unpermute(weights, config.num_kv_heads) if ".k_proj." in name else weights


def _offset_norms(name: str, weights: Floats, config: ModelConfig) -> Floats:
    """The file holds what norms multiply by, where Hugging Face leaves the one out."""
    return weights - np.float32(1) if name.endswith("norm.weight") else weights


def _keep(name: str, weights: Floats, config: ModelConfig) -> Floats:
    return weights


@dataclass(frozen=True, slots=True)
class Layout:
    """One architecture: the `model_type` that Hugging Face calls it by, its names, its order of values."""

    model_type: str
    names: Mapping[str, str]
    arrange: Arrange = _keep

    def hf_names(self, name: str, count: int) -> Iterator[str]:
        """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; of experts `count` names; an
        unknown name stays."""
        stem, _, kind = name.rpartition(".")
        prefix = ""
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".", 2)
            prefix = f"model.layers.{layer}."
        if stem not in self.names:
            yield name
        elif "{}" in self.names[stem]:
            yield from (f"{prefix}{self.names[stem].format(i)}.{kind}" for i in range(count))
        else:
            yield f"{prefix}{self.names[stem]}.{kind}"


LAYOUTS: Final = MappingProxyType(
    {
        "gemma3": Layout("gemma3_text", SANDWICH_NAMES, _offset_norms),
        "llama": Layout("llama", NAMES, _unpermute_heads),
        "phi3": Layout("phi3", FUSED_NAMES),
        "qwen2": Layout("qwen2", NAMES),
        "qwen3": Layout("qwen3", NAMES),
        "qwen3moe": Layout("qwen3_moe", EXPERT_NAMES),
    }
)
"""By `general.architecture`. Mistral's files say `llama`."""
