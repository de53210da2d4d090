"""Writes a folder's model as a GGUF file the way llama.cpp's converter does, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter
from safetensors.numpy import load_file

from headrace.gpu_engine.models.weights.gguf import NAMES, permute

Floats = npt.NDArray[np.float32]


def write_gguf(folder: Path, path: Path, divisors: Floats | None = None) -> Path:
    """Converts `folder` (config.json, model.safetensors) to a float32 GGUF file at `path`."""
    config = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(path, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(gguf_name(name), _arrange(name, tensor, config))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """`model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`."""
    ours = {hf: theirs for theirs, hf in NAMES.items()}
    stem, kind = name.rsplit(".", 1)
    if stem in ours:
        return f"{ours[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{ours[part]}.{kind}"


def _arrange(name: str, tensor: Floats, config: dict[str, Any]) -> Floats:
    if config["model_type"] != "llama" or not ("q_proj" in name or "k_proj" in name):
        return tensor
    heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
    return np.ascontiguousarray(permute(tensor, config[heads]))
