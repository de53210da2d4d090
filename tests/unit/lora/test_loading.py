"""What of an adapter's folder is read, and with which sentence the rest is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.gpu_engine.lora.adapter import Adapter, load_adapter
from headrace.gpu_engine.lora.adapters import load_adapters
from headrace.gpu_engine.lora.config import AdapterConfig
from headrace.gpu_engine.lora.places import Place, places
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import read_folder_config
from tests.support.lora import PREFIX, save_adapter, write_adapter
from tests.support.tiny_models import TinyModel

FIELDS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
Q = f"{PREFIX}model.layers.1.self_attn.q_proj"
PAIR = {f"{Q}.lora_A.weight": torch.ones(4, 64), f"{Q}.lora_B.weight": torch.ones(64, 4)}


@pytest.fixture
def model(tiny_model: TinyModel) -> Path:
    return tiny_model("llama")


def load(folder: Path, model: Path, max_rank: int = 64) -> Adapter:
    return load_adapter("sql", folder, read_folder_config(model), max_rank)


def load_pair(
    folder: Path, model: Path, tensors: Mapping[str, torch.Tensor] = PAIR, **fields: Any
) -> Adapter:
    write_adapter(folder, tensors, FIELDS | fields)
    return load(folder, model)


def test_parts_of_a_fused_matrix_lie_side_by_side(tiny_model: TinyModel) -> None:
    llama = places(read_folder_config(tiny_model("llama")), 0)
    assert llama["self_attn.q_proj"] == Place("qkv", 0, 64, 64)
    assert llama["self_attn.k_proj"] == Place("qkv", 64, 32, 64)
    assert llama["self_attn.v_proj"] == Place("qkv", 96, 32, 64)
    assert llama["mlp.up_proj"] == Place("gate_up", 96, 96, 64)
    assert llama["mlp.down_proj"] == Place("down", 0, 64, 96)
    assert places(read_folder_config(tiny_model("phi3")), 0)["self_attn.qkv_proj"] == Place("qkv", 0, 128, 64)
    assert not [name for name in places(read_folder_config(tiny_model("qwen3-moe")), 0) if "mlp" in name]


def test_all_tensors_of_an_adapter_are_kept_with_their_places(model: Path, tmp_path: Path) -> None:
    adapter = load(save_adapter(tmp_path, model, targets=["k_proj", "up_proj"], rank=3), model)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert [{matrix: len(parts) for matrix, parts in layer.items()} for layer in adapter.layers] == [
        {"qkv": 1, "gate_up": 1}
    ] * 3
    (part,) = adapter.layers[2]["qkv"]
    assert torch.equal(part.a, tensors[f"{PREFIX}model.layers.2.self_attn.k_proj.lora_A.weight"])
    assert torch.equal(part.b, tensors[f"{PREFIX}model.layers.2.self_attn.k_proj.lora_B.weight"])
    assert (part.start, part.scale) == (64, 8 / 3)
    assert adapter.num_bytes == sum(tensor.nbytes for tensor in tensors.values())


def test_the_scale_is_pefts(model: Path, tmp_path: Path) -> None:
    def config(**fields: Any) -> AdapterConfig:
        return AdapterConfig.model_validate(FIELDS | fields)

    name = "model.layers.1.self_attn.q_proj"
    assert config().scale_of(name) == 2
    assert config(use_rslora=True).scale_of(name) == 8 / math.sqrt(4)
    assert config(rank_pattern={"q_proj": 16}).scale_of(name) == 8 / 16
    assert config(rank_pattern={"proj": 16}).scale_of(name) == 2, "a pattern is a whole name behind a dot"
    assert config(alpha_pattern={r"layers\.[01]\..*": 20, "q_proj": 3}).scale_of(name) == 5
    assert config(alpha_pattern={"^model.layers.1.self_attn.q_proj": 20}).scale_of(name) == 5


def test_half_precision_is_read_as_it_is_written(model: Path, tmp_path: Path) -> None:
    halves = {name: torch.rand_like(tensor).bfloat16() for name, tensor in PAIR.items()}
    (part,) = load_pair(tmp_path, model, halves).layers[1]["qkv"]
    assert torch.equal(part.a, halves[f"{Q}.lora_A.weight"].float())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias=all"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"lora_bias": True, "target_parameters": ["x"]}, "lora_bias, target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights=pissa_niter_4"),
        ({"peft_type": "IA3"}, "type IA3"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    model: Path, tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=rf"dapter sql .*{named}"):
        load_pair(tmp_path, model, **fields)


@pytest.mark.parametrize(
    "fields", [{"use_dora": False, "modules_to_save": None}, {"init_lora_weights": "gaussian", "new": 1}]
)
def test_what_changes_nothing_is_accepted(model: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    assert load_pair(tmp_path, model, **fields).num_bytes > 0


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({**PAIR, "base_model.model.lm_head.lora_A.weight": torch.ones(4, 64)}, "lm_head"),
        ({f"{PREFIX}model.embed_tokens.lora_embedding_A": torch.ones(4, 384)}, "embed_tokens"),
        ({name.replace("layers.1", "layers.3"): tensor for name, tensor in PAIR.items()}, "layers.3"),
        ({name.replace("q_proj", "c_attn"): tensor for name, tensor in PAIR.items()}, "c_attn"),
        ({f"{Q}.lora_A.weight": torch.ones(4, 64)}, "half of self_attn.q_proj in layer 1"),
        ({**PAIR, f"{Q}.lora_magnitude_vector.weight": torch.ones(64)}, "lora_magnitude_vector"),
        ({}, "no tensors"),
        ({**PAIR, f"{Q}.lora_A.weight": torch.ones(4, 60)}, r"\[4, 60\] of float32.* floats \[4, 64\]"),
        ({**PAIR, f"{Q}.lora_B.weight": torch.ones(64, 8)}, r"\[64, 8\]"),
        ({name: tensor.char() for name, tensor in PAIR.items()}, "int8"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_named(
    model: Path, tmp_path: Path, tensors: dict[str, torch.Tensor], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        load_pair(tmp_path, model, tensors)


def test_a_rank_above_the_highest_is_refused(model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, PAIR, FIELDS)
    with pytest.raises(ModelError, match=r"rank 4 .* more than max_lora_rank, 3"):
        load(tmp_path, model, max_rank=3)


def test_damaged_and_missing_files_are_told_of(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no adapter_config\.json"):
        load(tmp_path / "nowhere", model)
    write_adapter(tmp_path, PAIR, FIELDS)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x08" + bytes(7) + b"nonsense")
    with pytest.raises(ModelError, match="damaged"):
        load(tmp_path, model)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no adapter_model\.safetensors"):
        load(tmp_path, model)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 0}')
    with pytest.raises(ModelError, match=r"is wrong \(r: "):
        load(tmp_path, model)


def test_a_pattern_that_is_none_is_told_of(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is wrong \(alpha_pattern: .* '\(' is no pattern"):
        load_pair(tmp_path, model, alpha_pattern={"(": 3})


@pytest.mark.parametrize("fields", [{"rank_pattern": {"q_proj": 0}}, {"alpha_pattern": {"q_proj": math.nan}}])
def test_ranks_and_alphas_of_patterns_have_the_bounds_of_the_others(
    model: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    empty = {f"{Q}.lora_A.weight": torch.ones(0, 64), f"{Q}.lora_B.weight": torch.ones(64, 0)}
    with pytest.raises(ModelError, match=rf"is wrong \({next(iter(fields))}\.q_proj: "):
        load_pair(tmp_path, model, empty if "rank_pattern" in fields else PAIR, **fields)


def test_an_adapter_may_not_have_the_models_name(model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path, PAIR, FIELDS)
    with pytest.raises(ModelError, match="the model's own name"):
        load_adapters({"m": str(tmp_path)}, read_folder_config(model), model_name="m", max_rank=8)


def test_other_weights_have_another_fingerprint(model: Path, tmp_path: Path) -> None:
    prints = [
        load(save_adapter(tmp_path / str(i), model, seed=seed), model).fingerprint
        for i, seed in enumerate((1, 1, 2))
    ]
    assert prints[0] == prints[1] != prints[2]
