"""One adapter: its files, checked against the model, as tensors beside each matrix that it adds to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open

from headrace.gpu_engine.lora.config import CONFIG, AdapterConfig, read_adapter_config
from headrace.gpu_engine.lora.places import Matrix, Place, places
from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.models.weights.fingerprint import fingerprint_files
from headrace.gpu_engine.models.weights.tensors import PLAIN, listed

WEIGHTS: Final = "adapter_model.safetensors"
_TENSOR: Final = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.([\w.]+)\.lora_([AB])\.weight")


@dataclass(frozen=True, slots=True)
class LowRank:
    """Adds `scale` · B A x to outputs `start` … `start + len(b) - 1` of a matrix: `a` [r, inputs], `b`
    [outputs, r], both float32."""

    start: int
    a: torch.Tensor
    b: torch.Tensor
    scale: float


Additions = Mapping[Matrix, Sequence[LowRank]]
"""What an adapter adds in one layer."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """`fingerprint` is that of its files; `layers` has an entry for each layer of the model."""

    name: str
    fingerprint: str
    layers: Sequence[Additions]

    @property
    def parts(self) -> list[LowRank]:
        return [part for layer in self.layers for several in layer.values() for part in several]

    @property
    def num_bytes(self) -> int:
        return sum(part.a.nbytes + part.b.nbytes for part in self.parts)


def load_adapter(name: str, folder: Path, model: ModelConfig, max_rank: int) -> Adapter:
    """Reads a folder in PEFT's layout for a model of this config. Raises ModelError where it was made for
    another model, asks for what is not supported, or has a rank above `max_rank`."""
    config = read_adapter_config(name, folder)
    tensors = _read_tensors(name, folder / WEIGHTS)
    found: list[defaultdict[Matrix, list[LowRank]]] = [defaultdict(list) for _ in range(model.num_layers)]
    for layer, module in _list_modules(name, tensors, model):
        place = places(model, layer)[module]
        prefix = f"model.layers.{layer}.{module}"
        part = _read_part(name, prefix, tensors, place, config)
        if len(part.a) > max_rank:
            raise ModelError(
                f"LoRA adapter {name} has rank {len(part.a)} in {prefix}, more than max_lora_rank, "
                f"{max_rank}; raise it."
            )
        found[layer][place.matrix].append(part)
    return Adapter(name, fingerprint_files([folder / CONFIG, folder / WEIGHTS]), found)


def _read_tensors(name: str, path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise ModelError(
            f"LoRA adapter {name}: {path.parent} has no {WEIGHTS}; save it as safetensors (pickled weights "
            "are not read for safety)."
        )
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (a file handle)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"LoRA adapter {name}: {path} is damaged ({one_line(error)}).") from error


def _list_modules(
    name: str, tensors: Mapping[str, torch.Tensor], model: ModelConfig
) -> list[tuple[int, str]]:
    """Layer and projection of each pair of tensors, in order; every tensor must belong to one."""
    sides: dict[tuple[int, str], set[str]] = defaultdict(set)
    strangers = []
    for key in tensors:
        match = _TENSOR.fullmatch(key)
        layer, module = (int(match[1]), match[2]) if match else (model.num_layers, "")
        if match is None or layer >= model.num_layers or module not in places(model, layer):
            strangers.append(key)
        else:
            sides[layer, module].add(match[3])
    strangers += [f"half of {module} in layer {i}" for (i, module), both in sides.items() if len(both) < 2]
    if strangers:
        raise ModelError(
            f"LoRA adapter {name} holds {listed(strangers)}, which adds to nothing that this model "
            f"lets adapters change: {', '.join(_modules_of(model))}, in {model.num_layers} layers."
        )
    if not sides:
        raise ModelError(f"LoRA adapter {name} holds no tensors; save it again.")
    return sorted(sides)


def _modules_of(model: ModelConfig) -> list[str]:
    every = {module.rpartition(".")[2]: None for i in range(model.num_layers) for module in places(model, i)}
    return list(every)


def _read_part(
    name: str, module: str, tensors: Mapping[str, torch.Tensor], place: Place, config: AdapterConfig
) -> LowRank:
    a, b = (tensors[f"base_model.model.{module}.lora_{side}.weight"] for side in "AB")
    rank = config.rank_of(module)
    for tensor, shape in ((a, (rank, place.inputs)), (b, (place.outputs, rank))):
        if tuple(tensor.shape) != shape or tensor.dtype not in PLAIN:
            raise ModelError(
                f"LoRA adapter {name}: in {module} there is a tensor {list(tensor.shape)} of "
                f"{str(tensor.dtype).removeprefix('torch.')}, where the model and {CONFIG} ask for floats "
                f"{list(shape)}; check that the adapter was made for this model."
            )
    return LowRank(place.start, a.float().contiguous(), b.float().contiguous(), config.scale_of(module))
