"""Opens a model: finds its files, checks them against its config, and builds the decoder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from transformers import AutoConfig

from headrace.gpu_engine.memory.machine import require_memory
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.models.hf_config import LIBRARY_ERRORS
from headrace.gpu_engine.models.registry import read_config, require_supported
from headrace.gpu_engine.models.shapes import tensor_shapes
from headrace.gpu_engine.models.weights.dummy import RandomTensors
from headrace.gpu_engine.models.weights.fingerprint import fingerprint_files
from headrace.gpu_engine.models.weights.gguf import GgufFile
from headrace.gpu_engine.models.weights.resolve import model_name, resolve_model
from headrace.gpu_engine.models.weights.safetensors import SafetensorsFolder
from headrace.gpu_engine.models.weights.tensors import Tensors, TensorSource

LoadFormat = Literal["auto", "dummy"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with its name, and the fingerprint and size of its weights."""

    name: str
    fingerprint: str
    num_bytes: int
    decoder: CausalDecoder


def load_model(model: str, dtype: torch.dtype, load_format: LoadFormat = "auto") -> LoadedModel:
    """Loads a folder, a GGUF file or a hub id; `dummy` needs the folder's config.json only. Raises
    ModelError with a sentence for the user."""
    path = resolve_model(model)
    config, source, fingerprint = _open_checkpoint(path, load_format)
    shapes = tensor_shapes(config)
    num_bytes = sum(math.prod(shape) for shape in shapes.values()) * dtype.itemsize
    require_memory(num_bytes, f"The weights of {model} take", "use a smaller model, or bfloat16")
    decoder = Decoder(config, Tensors(source, shapes, dtype))
    return LoadedModel(model_name(model, path), fingerprint, num_bytes, decoder)


def _open_checkpoint(path: Path, load_format: LoadFormat) -> tuple[ModelConfig, TensorSource, str]:
    if path.is_file():
        gguf = GgufFile(path)
        if load_format == "dummy":
            return gguf.config, RandomTensors(tensor_shapes(gguf.config)), fingerprint_files([path], "dummy")
        return gguf.config, gguf, fingerprint_files([path])
    config = read_folder_config(path)
    described = path / "config.json"
    if load_format == "dummy":
        return config, RandomTensors(tensor_shapes(config)), fingerprint_files([described], "dummy")
    folder = SafetensorsFolder(path)
    return config, folder, fingerprint_files([described, *folder.files])


def check_config(path: Path) -> None:
    """Raises ModelError where a folder's config cannot be served, before anything large is read."""
    if path.is_dir():
        read_folder_config(path)


def read_folder_config(folder: Path) -> ModelConfig:
    """The config of a folder in Hugging Face layout; its code, if it brings any, is not run."""
    path = folder / "config.json"
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} is no readable JSON ({error}); download it again.") from error
    require_supported(values.get("model_type") if isinstance(values, dict) else None)
    try:
        return read_config(AutoConfig.from_pretrained(folder))
    except LIBRARY_ERRORS as error:
        raise ModelError(f"{path} is wrong ({one_line(error)}); check it against the model's own.") from error
