"""What fits: the memory that weights and KV cache take, from a model's config alone.

    of each GPU:  utilization x memory = its share of the weights + KV blocks
    a request:    blocks for all its tokens, keys and values of every layer

With tensor parallelism the weights are divided among the GPUs, and so are the KV heads; where there are
fewer heads than GPUs, heads are kept several times. Of a family's model the shares are counted to the number
(`parallel.share`). What a step needs besides (activations, logits, the
library's own) has to fit into the share that `utilization` leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import CONFIG, read_folder_config, read_hf_config, read_model_type
from headrace.gpu_engine.models.registry import is_family
from headrace.gpu_engine.models.shapes import count_weights
from headrace.gpu_engine.models.weights.gguf import GgufFile
from headrace.gpu_engine.models.weights.resolve import model_name, resolve_model
from headrace.gpu_engine.parallel.share import Share, refuse_uneven

UTILIZATION: Final = 0.92
"""Share of a GPU's memory that weights and KV cache may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What of a model counts here. `head_dim` numbers of `num_kv_heads` heads are kept of each token, once
    for its keys and once for its values, in each of `num_layers` layers. `config`: that of a family, which
    says how the model is divided."""

    name: str
    num_weights: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    config: ModelConfig | None = None

    def held_by(self, gpus: int) -> int:
        """Weights that so many GPUs keep, together. Raises ModelError where they cannot divide the model."""
        if self.config is None:
            return self.num_weights
        refuse_uneven(self.config, gpus)
        return sum(Share(self.config, rank, gpus).num_weights for rank in range(gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What fits. Bytes; `kv_bytes_per_token` and `kv_bytes_per_request` are of all GPUs together, the blocks
    the same on each. `num_requests` of `num_tokens` tokens, prompt and answer together, run at a time."""

    size: ModelSize
    num_tokens: int
    block_size: int
    gpus: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_request: int
    kv_bytes: int
    num_blocks: int
    num_requests: int


def measure_model(model: str) -> ModelSize:
    """The size of a folder, GGUF file or hub id, from its config or header. Raises ModelError."""
    path = resolve_model(model, files=[CONFIG])
    name = model_name(model, path)
    if path.is_dir() and not is_family(read_model_type(path)):
        return _measure_foreign(name, path)
    config = GgufFile(path).config if path.is_file() else read_folder_config(path)
    return _measure_family(name, config)


def plan_capacity(
    size: ModelSize,
    *,
    gpu_bytes: int,
    gpus: int = 1,
    num_tokens: int,
    dtype_bytes: int = 2,
    block_size: int = 16,
    utilization: float = UTILIZATION,
) -> Capacity:
    """What fits into `gpus` GPUs of `gpu_bytes` each, for requests of `num_tokens`, with weights and KV cache
    of `dtype_bytes` a number. Raises ModelError where the weights alone do not fit, and where the model has
    no place for so many tokens."""
    if num_tokens > size.max_context:
        raise ModelError(
            f"{size.name} has a context of {size.max_context} tokens, {num_tokens} are more: lower --tokens."
        )
    heads = -(-size.num_kv_heads // gpus) * gpus
    per_token = 2 * size.num_layers * heads * size.head_dim * dtype_bytes
    weights = size.held_by(gpus) * dtype_bytes
    free = int(utilization * gpu_bytes) * gpus - weights
    if free <= 0:
        raise ModelError(_too_large(size.name, weights, gpu_bytes, gpus, utilization))
    blocks = free // (per_token * block_size)
    per_request = -(-num_tokens // block_size)
    return Capacity(
        size=size,
        num_tokens=num_tokens,
        block_size=block_size,
        gpus=gpus,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        kv_bytes_per_request=per_request * block_size * per_token,
        kv_bytes=free,
        num_blocks=blocks,
        num_requests=max(0, blocks - 1) // per_request,  # one is the null block
    )


def _measure_family(name: str, config: ModelConfig) -> ModelSize:
    return ModelSize(
        name=name,
        num_weights=count_weights(config),
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_context=config.max_context,
        config=config,
    )


def _measure_foreign(name: str, path: Path) -> ModelSize:
    """Of a model that transformers computes: built without memory for its weights, and counted."""
    config: Any = read_hf_config(path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    heads = config.num_attention_heads
    return ModelSize(
        name=name,
        num_weights=sum(weight.numel() for weight in model.parameters()),
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        max_context=config.max_position_embeddings,
    )


def _too_large(name: str, weights: int, gpu_bytes: int, gpus: int, utilization: float) -> str:
    needed = math.floor(weights / (utilization * gpu_bytes)) + 1
    return (
        f"The weights of {name} take {weights / 1e9:.1f} GB, more than {utilization:.0%} of {gpus} x "
        f"{gpu_bytes / 1e9:.1f} GB; use {needed} such GPUs or more, or a smaller --dtype."
    )
