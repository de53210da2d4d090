"""Mistral (Jiang et al. 2023): Llama with a sliding window in every layer, or in later models in none."""

from __future__ import annotations

from typing import Any

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.hf_config import read_decoder, windows_everywhere


def read_mistral(config: Any) -> ModelConfig:
    """Our config of a transformers `MistralConfig`."""
    return read_decoder(config, windows=windows_everywhere(config))
