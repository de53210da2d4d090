"""GGUF files: config from their metadata, tensors dequantised and renamed to Hugging Face's layout.

Format: the GGUF specification of the ggml project. Quantised blocks are expanded exactly as ggml defines
them, so a quantised file is served as the full-precision model that it denotes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
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
from headrace.gpu_engine.models.registry import read_config, require_supported

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

METADATA: Final = MappingProxyType(
    {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    }
)

ROPE_DIVISORS: Final = "rope_freqs.weight"


class QuickReader(GGUFReader):  # type: ignore[misc]  # the package is not typed
    """Reads metadata from a plain view of the mapped file: slicing a memmap, as the reader does for every
    entry of a vocabulary, costs three times as much."""

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self._plain

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._plain = mapped.view(np.ndarray)


class GgufFile:
    """One GGUF file. `config` is the model's; `read` gives float32."""

    def __init__(self, path: Path) -> None:
        self.origin = str(path)
        try:
            reader = QuickReader(path)
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            self._theirs = {hf_name(name): name for name in self._tensors if name != ROPE_DIVISORS}
            self.config = self._read_config(_read_metadata(reader))
        except LIBRARY_ERRORS as error:
            raise ModelError(
                f"{path} is not a GGUF file, or damaged or incomplete ({one_line(error)}); download it again."
            ) from error

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """GGUF lists dimensions with the fastest first."""
        return {
            name: tuple(int(n) for n in reversed(self._tensors[theirs].shape))
            for name, theirs in self._theirs.items()
        }

    def read(self, name: str) -> torch.Tensor:
        weights = self._dequantize(self._theirs[name])
        if self.config.architecture == "llama":
            if ".q_proj." in name:
                weights = unpermute(weights, self.config.num_heads)
            elif ".k_proj." in name:
                weights = unpermute(weights, self.config.num_kv_heads)
        # A file's own pages are read-only; torch wants memory that may be written.
        return torch.from_numpy(weights if weights.flags.writeable else weights.copy())

    def _dequantize(self, name: str) -> npt.NDArray[np.float32]:
        tensor = self._tensors[name]
        try:
            weights: npt.NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"The weights {name} in {self.origin} are quantised as {tensor.tensor_type.name}, which "
                "is not supported; use a file of another quantisation."
            ) from error
        return weights.reshape(tuple(int(n) for n in reversed(tensor.shape)))

    def _read_config(self, metadata: dict[str, Any]) -> ModelConfig:
        architecture = require_supported(metadata.get("general.architecture"))
        prefix = f"{architecture}."
        fields = {hf: metadata[prefix + ours] for ours, hf in METADATA.items() if prefix + ours in metadata}
        missing = [name for name in METADATA if METADATA[name] not in fields and name not in _OPTIONAL]
        if missing or "token_embd.weight" not in self._tensors:
            what = prefix + missing[0] if missing else "token_embd.weight"
            raise ModelError(f"{self.origin} lacks {what}; download it again or use another conversion.")
        config = AutoConfig.for_model(
            architecture,
            **fields,
            vocab_size=int(self._tensors["token_embd.weight"].shape[1]),
            tie_word_embeddings="output.weight" not in self._tensors,
            attention_bias="blk.0.attn_q.bias" in self._tensors,
            mlp_bias="blk.0.ffn_up.bias" in self._tensors,
            rope_parameters=_read_rope(metadata, prefix),
        )
        return self._with_divisors(read_config(config))

    def _with_divisors(self, config: ModelConfig) -> ModelConfig:
        """Llama 3's scaling comes as a tensor that divides the frequencies."""
        if ROPE_DIVISORS not in self._tensors:
            return config
        divisors = tuple(float(x) for x in self._dequantize(ROPE_DIVISORS))
        if len(divisors) != config.head_dim // 2:
            raise ModelError(
                f"{self.origin} has {len(divisors)} rotary divisors for heads of {config.head_dim}; "
                "download it again or use another conversion."
            )
        return replace(config, rope=replace(config.rope, divisors=divisors))


_OPTIONAL = frozenset({"attention.head_count_kv", "attention.key_length"})


def hf_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; an unknown name stays."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{NAMES[stem]}.{kind}" if stem in NAMES else name
    _, layer, part = stem.split(".", 2)
    return f"model.layers.{layer}.{NAMES[part]}.{kind}" if part in NAMES else name


def permute(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows of a query or key matrix from Hugging Face's order, where row i of a head turns with row
    i + half, to ggml's Llama order, where neighbours turn together. The inverse of `unpermute`."""
    return weights.reshape(heads, 2, -1, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def unpermute(weights: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """ggml's Llama order of rows back to Hugging Face's; see `permute`."""
    return weights.reshape(heads, -1, 2, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _read_metadata(reader: GGUFReader) -> dict[str, Any]:
    """Single values only: the tokenizer's lists are long and not ours."""
    return {
        name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")
    }


def _read_rope(metadata: dict[str, Any], prefix: str) -> dict[str, Any]:
    rope: dict[str, Any] = {"rope_theta": metadata.get(prefix + "rope.freq_base", 10000.0)}
    kind = metadata.get(prefix + "rope.scaling.type", "none")
    factor = metadata.get(prefix + "rope.scaling.factor", 1.0)
    if kind != "none" and factor not in (0.0, 1.0):
        rope |= {"rope_type": kind, "factor": factor}
    return rope
