"""GGUF files: config from their metadata, tensors dequantised and renamed to Hugging Face's layout.

Format: the GGUF specification of the ggml project. Quantised blocks are expanded exactly as ggml defines
them, so a quantised file is served as the full-precision model that it denotes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoConfig

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.errors import ModelError, one_line
from headrace.gpu_engine.models.hf_config import LIBRARY_ERRORS
from headrace.gpu_engine.models.registry import read_config
from headrace.gpu_engine.models.weights.gguf_config import Metadata
from headrace.gpu_engine.models.weights.gguf_layout import LAYOUTS, Floats, Layout

ROPE_DIVISORS: Final = "rope_freqs.weight"
LONGROPE: Final = {"rope_factors_short.weight": "short_factor", "rope_factors_long.weight": "long_factor"}
NOT_WEIGHTS: Final = {ROPE_DIVISORS, *LONGROPE}


class QuickReader(GGUFReader):  # type: ignore[misc]  # the package is not typed
    """Reads metadata from a plain view of the mapped file: slicing a memmap, as the reader does for every
    entry of a vocabulary, costs three times as much."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self._plain

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._plain = mapped.view(np.ndarray)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor stands: a whole tensor of the file, or one `expert` of it."""

    name: str
    shape: tuple[int, ...]
    expert: int | None = None


class GgufFile:
    """One GGUF file. `config` is the model's; `read` gives float32."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        try:
            reader = QuickReader(path)
            metadata = _read_metadata(reader)
            self._layout = _find_layout(metadata)
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            self._places = dict(self._place_all())
            self.config = self._read_config(metadata)
        except LIBRARY_ERRORS as error:
            raise ModelError(
                f"{path} is not a GGUF file, or damaged or incomplete ({one_line(error)}); download it again."
            ) from error

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: place.shape for name, place in self._places.items()}

    def read(self, name: str) -> torch.Tensor:
        weights = self._layout.arrange(name, self._dequantize(self._places[name]), self.config)
        # A file's own pages are read-only; torch wants memory that may be written.
        return torch.from_numpy(weights if weights.flags.writeable else weights.copy())

    def _place_all(self) -> Iterator[tuple[str, Place]]:
        for theirs, tensor in self._tensors.items():
            shape = _shape_of(tensor)
            names = list(self._layout.hf_names(theirs, shape[0])) if theirs not in NOT_WEIGHTS else []
            if len(shape) < 3:
                yield from ((name, Place(theirs, shape)) for name in names)
            else:
                yield from ((name, Place(theirs, shape[1:], i)) for i, name in enumerate(names))

    def _dequantize(self, place: Place) -> Floats:
        tensor = self._tensors[place.name]
        data = tensor.data if place.expert is None else tensor.data[place.expert]
        try:
            weights: Floats = dequantize(data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"The weights {place.name} in {self.origin} are quantised as {tensor.tensor_type.name}, "
                "which is not supported; use a file of another quantisation."
            ) from error
        return weights.reshape(place.shape)

    def _vector(self, name: str) -> tuple[float, ...]:
        return tuple(float(x) for x in self._dequantize(Place(name, _shape_of(self._tensors[name]))))

    def _read_config(self, values: dict[str, Any]) -> ModelConfig:
        metadata = Metadata(values, values["general.architecture"])
        missing = metadata.missing()
        if missing or "token_embd.weight" not in self._tensors:
            what = missing or "token_embd.weight"
            raise ModelError(f"{self.origin} lacks {what}; download it again or use another conversion.")
        factors = {hf: list(self._vector(name)) for name, hf in LONGROPE.items() if name in self._tensors}
        config = AutoConfig.for_model(
            self._layout.model_type,
            vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
            tie_word_embeddings="output.weight" not in self._tensors,
            attention_bias="blk.0.attn_q.bias" in self._tensors,
            mlp_bias="blk.0.ffn_up.bias" in self._tensors,
            **metadata.fields(factors),
        )
        return self._with_divisors(read_config(config))

    def _with_divisors(self, config: ModelConfig) -> ModelConfig:
        """Llama 3's scaling comes as a tensor that divides the frequencies."""
        if ROPE_DIVISORS not in self._tensors:
            return config
        divisors = self._vector(ROPE_DIVISORS)
        if len(divisors) != config.head_dim // 2:
            raise ModelError(
                f"{self.origin} has {len(divisors)} rotary divisors for heads of {config.head_dim}; "
                "download it again or use another conversion."
            )
        return replace(config, rope=replace(config.rope, divisors=divisors))


def _find_layout(metadata: Mapping[str, Any]) -> Layout:
    architecture = metadata.get("general.architecture")
    if isinstance(architecture, str) and architecture in LAYOUTS:
        return LAYOUTS[architecture]
    raise ModelError(
        f"GGUF files of the architecture '{architecture}' are not supported; "
        f"supported are {', '.join(LAYOUTS)}."
    )


def _shape_of(tensor: Any) -> tuple[int, ...]:
    """GGUF lists dimensions with the fastest first."""
    return tuple(int(n) for n in reversed(tensor.shape))


def _read_metadata(reader: GGUFReader) -> dict[str, Any]:
    """Single values only: the tokenizer's lists are long and not ours."""
    return {
        name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")
    }
