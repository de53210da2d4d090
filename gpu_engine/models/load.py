"""Opens a model: finds its files, checks them against its config, and builds the decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from headrace.gpu_engine.lora.adapters import Adapters
from headrace.gpu_engine.memory.machine import require_memory
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.contract import CausalDecoder
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.folder import CONFIG, read_folder_config, read_hf_config, read_model_type
from headrace.gpu_engine.models.registry import is_family
from headrace.gpu_engine.models.shapes import count_weights, tensor_shapes
from headrace.gpu_engine.models.stretch import stretch
from headrace.gpu_engine.models.weights.dummy import RandomTensors
from headrace.gpu_engine.models.weights.fingerprint import fingerprint_files
from headrace.gpu_engine.models.weights.gguf import GgufFile
from headrace.gpu_engine.models.weights.resolve import model_name, resolve_model
from headrace.gpu_engine.models.weights.safetensors import SafetensorsFolder
from headrace.gpu_engine.models.weights.tensors import Tensors, TensorSource

LoadFormat = Literal["auto", "dummy"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A decoder with its name, and the fingerprint and size of its weights. `adapters` are those that it
    computes with; their size counts too."""

    name: str
    fingerprint: str
    num_bytes: int
    decoder: CausalDecoder
    adapters: Adapters = field(default_factory=Adapters)


def load_model(
    model: str,
    dtype: torch.dtype,
    load_format: LoadFormat = "auto",
    longest: int | None = None,
    *,
    lazily: bool = False,
) -> LoadedModel:
    """Loads a folder, a GGUF file or a hub id; `dummy` needs the folder's config.json only. `longest`: how
    many tokens the user wants of a sequence at most, where he says so. `lazily`: the layers of a `Decoder`
    are not read yet, nor is there a check that they have room. Raises ModelError with a sentence for the
    user."""
    path = resolve_model(model)
    name = model_name(model, path)
    if path.is_dir() and not is_family(read_model_type(path)):
        return _load_foreign(name, path, dtype, load_format)
    config, source, fingerprint = open_checkpoint(path, load_format, longest)
    num_bytes = count_weights(config) * dtype.itemsize
    if not lazily:
        require_room(model, num_bytes)
    decoder = Decoder(config, Tensors(source, tensor_shapes(config), dtype), lazily=lazily)
    return LoadedModel(name, fingerprint, num_bytes, decoder)


def require_room(model: str, num_bytes: float) -> None:
    """Raises ModelError where its weights do not fit into this machine's memory."""
    require_memory(int(num_bytes), f"The weights of {model} take", "use a smaller model, or bfloat16")


def _load_foreign(name: str, path: Path, dtype: torch.dtype, load_format: LoadFormat) -> LoadedModel:
    """A model that transformers computes."""
    # Here, since it imports the models of transformers, which takes seconds.
    from headrace.gpu_engine.models.foreign.load import draw_foreign, load_foreign

    config = read_hf_config(path)
    if load_format == "dummy":
        decoder, fingerprint = draw_foreign(config, dtype), fingerprint_files([path / CONFIG], "dummy")
    else:
        folder = SafetensorsFolder(path)  # first, since it tells of damaged files in our own words
        decoder = load_foreign(path, config, dtype)
        fingerprint = fingerprint_files([path / CONFIG, *folder.files])
    return LoadedModel(name, fingerprint, decoder.num_bytes, decoder)


def open_checkpoint(
    path: Path, load_format: LoadFormat, longest: int | None
) -> tuple[ModelConfig, TensorSource, str]:
    """The config of a folder or GGUF file of a family, as it is for sequences of `longest` tokens, its
    tensors, and the fingerprint of its weights, which says too whether they serve long ones."""
    config, source, fingerprint = _open(path, load_format)
    stretched = stretch(config, longest)
    return stretched, source, fingerprint if stretched is config else f"{fingerprint}/long"


def _open(path: Path, load_format: LoadFormat) -> tuple[ModelConfig, TensorSource, str]:
    if path.is_file():
        gguf = GgufFile(path)
        if load_format == "dummy":
            return gguf.config, RandomTensors(tensor_shapes(gguf.config)), fingerprint_files([path], "dummy")
        return gguf.config, gguf, fingerprint_files([path])
    config = read_folder_config(path)
    if load_format == "dummy":
        return config, RandomTensors(tensor_shapes(config)), fingerprint_files([path / CONFIG], "dummy")
    folder = SafetensorsFolder(path)
    return config, folder, fingerprint_files([path / CONFIG, *folder.files])
