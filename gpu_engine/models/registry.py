"""Which model families there are."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.gemma import read_gemma2, read_gemma3
from headrace.gpu_engine.models.llama import read_llama
from headrace.gpu_engine.models.mistral import read_mistral
from headrace.gpu_engine.models.phi import read_phi3
from headrace.gpu_engine.models.qwen import read_qwen2, read_qwen3, read_qwen3_moe

FAMILIES: Final = MappingProxyType[str, Callable[[Any], ModelConfig]](
    {
        "gemma2": read_gemma2,
        "gemma3_text": read_gemma3,
        "llama": read_llama,
        "mistral": read_mistral,
        "phi3": read_phi3,
        "qwen2": read_qwen2,
        "qwen3": read_qwen3,
        "qwen3_moe": read_qwen3_moe,
    }
)
"""By `model_type` of a config.json."""


def is_family(model_type: object) -> bool:
    """Whether models of that type are written out here."""
    return isinstance(model_type, str) and model_type in FAMILIES


def unsupported(model_type: object) -> ModelError:
    """The error that says what is supported."""
    return ModelError(
        f"Models of type '{model_type}' are not supported; supported are {', '.join(sorted(FAMILIES))}, and "
        "other decoders that transformers has, from safetensors."
    )


def read_config(config: Any) -> ModelConfig:
    """Our config of a transformers config object of any family."""
    if not is_family(config.model_type):
        raise unsupported(config.model_type)
    return FAMILIES[config.model_type](config)
