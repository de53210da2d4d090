"""Writes a folder's model as a GGUF file the way llama.cpp's converter does, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, RopeScalingType
from safetensors.numpy import load_file

from headrace.gpu_engine.models.weights.gguf_layout import LAYOUTS, Floats, permute

ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe"}
"""Those that are not called by their `model_type`."""


def write_gguf(folder: Path, path: Path, divisors: Floats | None = None) -> Path:
    """Converts `folder` (config.json, model.safetensors) to a float32 GGUF file at `path`."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = GGUFWriter(path, architecture)
    _write_sizes(writer, config)
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    tensors = load_file(folder / "model.safetensors")
    special = {"gemma3": _write_gemma3, "phi3": _write_phi3}
    special.get(architecture, _write_rope)(writer, config)
    if architecture == "qwen3moe":
        _write_experts(writer, config, tensors)
    names = {ours: theirs for theirs, ours in LAYOUTS[architecture].names.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(gguf_name(name, names), _arrange(name, tensor, config))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str, names: Mapping[str, str]) -> str:
    """`model.layers.3.self_attn.q_proj.weight` → `blk.3.attn_q.weight`."""
    stem, kind = name.rsplit(".", 1)
    if stem in names:
        return f"{names[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{names[part]}.{kind}"


def _write_sizes(writer: GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _write_rope(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_gemma3(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    _write_rope(writer, {"rope_parameters": rope["full_attention"]})


def _write_phi3(writer: GGUFWriter, config: dict[str, Any]) -> None:
    rope, head_dim = config["rope_parameters"], config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_sliding_window(config["sliding_window"] or 0)
    for kind in ("short", "long"):
        if factors := rope.get(f"{kind}_factor"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(factors, np.float32))


def _write_experts(writer: GGUFWriter, config: dict[str, Any], tensors: dict[str, Floats]) -> None:
    """Experts are stacked, and taken out of `tensors`."""
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts"
        for part in ("gate", "up", "down"):
            experts = range(config["num_local_experts"])
            stacked = [tensors.pop(f"{prefix}.{i}.{part}_proj.weight") for i in experts]
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", np.stack(stacked))


def _arrange(name: str, tensor: Floats, config: dict[str, Any]) -> Floats:
    if config["model_type"] == "gemma3_text" and name.endswith("norm.weight"):
        return tensor + np.float32(1)
    if config["model_type"] not in ("llama", "mistral") or not ("q_proj" in name or "k_proj" in name):
        return tensor
    heads = "num_attention_heads" if "q_proj" in name else "num_key_value_heads"
    return np.ascontiguousarray(permute(tensor, config[heads]))
