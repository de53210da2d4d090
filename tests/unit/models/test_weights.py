"""Weights: read as they are meant, or refused with a sentence."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

from headrace.gpu_engine.models.config import ModelConfig
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import read_folder_config
from headrace.gpu_engine.models.load import LoadFormat, load_model
from headrace.gpu_engine.models.rope import inverse_frequencies
from headrace.gpu_engine.models.weights.fingerprint import fingerprint_files
from headrace.gpu_engine.models.weights.gguf import GgufFile
from headrace.gpu_engine.models.weights.gguf_layout import permute, unpermute
from headrace.gpu_engine.models.weights.safetensors import SafetensorsFolder
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_models import LLAMA3_ROPE, LONG_ROPE, YARN_ROPE, TinyModel, save_tiny_model

torch.set_num_threads(1)

WEIGHTS = "model.safetensors"

QWEN2_WINDOW = {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}
QWEN3_MOE = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}


@pytest.fixture
def folder(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """A copy of the tiny Llama that a test may damage."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / WEIGHTS) | {name.replace("__", "."): x for name, x in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / WEIGHTS)


def decoder_of(folder: Path, load_format: LoadFormat = "auto") -> Decoder:
    decoder = load_model(str(folder), torch.float32, load_format).decoder
    assert isinstance(decoder, Decoder)
    return decoder


def refused(model: Path | str, **kwargs: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(model), torch.float32, **kwargs)
    sentence = str(caught.value)
    assert sentence.endswith("."), sentence
    assert "\n" not in sentence
    return sentence


# ------------------------------------------------------------------------------------------ safetensors


def test_a_sharded_folder_is_read_like_a_single_file(folder: Path, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    one, many = SafetensorsFolder(folder), SafetensorsFolder(tmp_path / "sharded")
    assert one.shapes == many.shapes
    assert all(torch.equal(one.read(name), many.read(name)) for name in one.shapes)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path, max_shard_size="40KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    assert f"lacks {gone.name}, 1 of" in refused(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": [1]}}'])
def test_a_damaged_index_is_refused(folder: Path, text: str) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index" in refused(folder)


@pytest.mark.parametrize("size", [0, 4, 100, -1])
def test_a_truncated_weights_file_is_refused(folder: Path, size: int) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:size])
    assert "damaged or incomplete" in refused(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_weights_that_are_no_plain_numbers_are_refused(folder: Path, dtype: torch.dtype) -> None:
    change_weights(folder, model__norm__weight=torch.ones(64).to(dtype))
    assert "model.norm.weight is stored as" in refused(folder)


def test_a_weights_file_that_changes_while_it_is_read_is_refused(folder: Path) -> None:
    tensors = SafetensorsFolder(folder)
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(ModelError, match="damaged or incomplete"):
        tensors.read("model.norm.weight")


def test_missing_tensors_are_named(folder: Path) -> None:
    change_weights(folder, model__norm__weight=None, model__layers__1__mlp__up_proj__weight=None)
    sentence = refused(folder)
    assert "lack model.norm.weight, model.layers.1.mlp.up_proj.weight;" in sentence


def test_unexpected_tensors_are_named(folder: Path) -> None:
    change_weights(folder, model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    assert "hold model.layers.0.self_attn.q_proj.bias, which" in refused(folder)


def test_a_wrong_number_of_layers_names_a_few_tensors_and_counts_the_rest(folder: Path) -> None:
    change_config(folder, num_hidden_layers=9)
    assert "and 49 more" in refused(folder)
    change_config(folder, num_hidden_layers=2)
    assert "and 4 more" in refused(folder)


def test_a_wrong_shape_is_named_with_both_shapes(folder: Path) -> None:
    change_config(folder, intermediate_size=128)
    assert "has shape [96, 64], but by the model's config it should be [128, 64]" in refused(folder)


def test_harmless_leftovers_of_old_checkpoints_are_ignored(folder: Path) -> None:
    change_weights(
        folder,
        lm_head__weight=torch.zeros(384, 64),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8),
    )
    assert decoder_of(folder).head.weight.any()


def test_an_untied_head_is_required(folder: Path) -> None:
    change_config(folder, tie_word_embeddings=False)
    assert "lack lm_head.weight;" in refused(folder)


def test_a_folder_with_pickled_weights_only_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    assert "pytorch_model.bin" in refused(folder)


# ----------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "vit"}, "'vit' are not supported; supported are gemma2, gemma3_text, llama, mistral"),
        ({"model_type": None}, "'None' are not supported"),
        ({"model_type": ["llama"]}, "not supported; supported are gemma2"),
        ({"hidden_size": "many"}, "expected int, got str"),
        ({"num_attention_heads": 3}, "not a multiple"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_attention_heads": 0}, "wrong"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers is 10000000"),
        ({"max_position_embeddings": 1}, "max_position_embeddings is 1"),
        ({"head_dim": -16}, "head_dim is -16"),
        ({"head_dim": "x"}, "config.json is wrong (Validation error for field 'head_dim'"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps is nan"),
        ({"hidden_act": "gelu"}, "'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1.0}}, "'dynamic'"),
        ({"rope_parameters": YARN_ROPE | {"rope_theta": 1.0}}, "rope_theta is 1.0"),
        ({"rope_parameters": YARN_ROPE | {"beta_fast": -1}}, "rotary parameters are"),
        ({"rope_parameters": YARN_ROPE | {"attention_factor": -1}}, "rotary factors are not all positive"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "only a part of each head"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_parameters"),
        ({"rope_parameters": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "is not below its high_freq_factor"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1.0, "factor": 0}}, "rotary parameters"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1.0, "factor": "x"}}, "not str"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rotary parameters"),
        ({"layer_types": ["chunked_attention"] * 3}, "uses chunked_attention"),
        ({"vocab_size": 10**12}, "and this machine has"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"layer_types": ["sliding_attention"] * 3}, "uses sliding_attention"),
        ({"model_type": "qwen2", "layer_types": ["linear_attention"] * 3}, "uses linear_attention"),
        (QWEN2_WINDOW | {"sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window is -1"),
        ({"model_type": "phi3", "rope_parameters": LONG_ROPE | {"short_factor": [1.0] * 5}}, "short_factor"),
        ({"model_type": "phi3", "rope_parameters": LONG_ROPE | {"long_factor": [0.0] * 6}}, "rotary factors"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "in both directions"),
        ({"model_type": "gemma3_text", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0"),
        ({"model_type": "gemma2", "hidden_activation": "relu"}, "activation 'relu' is not supported"),
        (QWEN3_MOE | {"num_experts_per_tok": 9}, "each token takes 9 of 8 experts"),
        (QWEN3_MOE | {"num_experts": 10**9}, "num_experts is 1000000000"),
        (QWEN3_MOE | {"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
    ],
)
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_config_that_cannot_be_served_is_refused(
    folder: Path, values: dict[str, Any], why: str, load_format: LoadFormat
) -> None:
    change_config(folder, **values)
    assert why in refused(folder, load_format=load_format)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "\xff"])
def test_a_config_that_is_no_object_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    assert refused(folder)


def test_the_old_spelling_of_rope_scaling_is_understood(folder: Path) -> None:
    change_config(
        folder, rope_parameters=None, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0}
    )
    rope = read_folder_config(folder).rope
    assert (rope.theta, rope.kind, rope.factor) == (5e5, "linear", 4.0)


# ------------------------------------------------------------------------------------------------- gguf


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_permutation_of_query_rows_is_undone_exactly(heads: int) -> None:
    for shape in [(heads * 6, 5), (heads * 6,)]:
        rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        assert np.array_equal(unpermute(permute(rows, heads), heads), rows)
    pairs = permute(np.arange(heads * 6, dtype=np.float32), heads)
    assert pairs[:4].tolist() == [0, 3, 1, 4]  # the halves of a head interleave


IN_GGUF = [
    "llama",
    "llama-biased",
    "llama-linear-rope",
    "llama-yarn-rope",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3-moe",
    "phi3",
    "phi3-long",
    "gemma3",
]


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_is_the_same_model_as_its_folder(
    tiny_model: TinyModel, tmp_path: Path, name: str
) -> None:
    gguf = GgufFile(write_gguf(tiny_model(name), tmp_path / "model.gguf"))
    folder, config = SafetensorsFolder(tiny_model(name)), read_folder_config(tiny_model(name))
    assert gguf.config.norm_eps == pytest.approx(config.norm_eps)
    assert rounded(gguf.config) == rounded(replace(config, norm_eps=gguf.config.norm_eps))
    assert gguf.shapes.keys() == folder.shapes.keys()
    for tensor, shape in folder.shapes.items():
        assert gguf.shapes[tensor] == shape
        torch.testing.assert_close(gguf.read(tensor), folder.read(tensor), rtol=0, atol=2e-7, msg=tensor)


def rounded(config: ModelConfig) -> ModelConfig:
    """As a file has it that holds single precision, and calls Mistral a Llama."""

    def single(factors: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(float(np.float32(x)) for x in factors)

    rope = config.rope
    rope = replace(rope, divisors=single(rope.divisors), long_divisors=single(rope.long_divisors))
    architecture = {"mistral": "llama"}.get(config.architecture, config.architecture)
    return replace(config, rope=rope, architecture=architecture)


def test_llama3_scaling_in_a_gguf_file_equals_that_of_the_config(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    """The converter writes what the frequencies are divided by."""
    config = read_folder_config(tiny_model("llama-llama3-rope"))
    scaled = inverse_frequencies(config.rope, config.head_dim)
    plain = inverse_frequencies(read_folder_config(tiny_model("llama")).rope, config.head_dim)
    divisors = (plain / scaled).numpy()
    assert divisors.max() > 1
    gguf = GgufFile(write_gguf(tiny_model("llama-llama3-rope"), tmp_path / "m.gguf", divisors))
    torch.testing.assert_close(inverse_frequencies(gguf.config.rope, gguf.config.head_dim), scaled)
    load_model(str(tmp_path / "m.gguf"), torch.float32)


def test_an_expert_of_a_quantised_file_is_read_without_the_others(tmp_path: Path) -> None:
    """Blocks of 32 weights lie along the rows, so that experts are cut between blocks."""
    whole = np.random.default_rng(0).normal(size=(4, 6, 64)).astype(np.float32)
    blocks = quantize(whole, GGMLQuantizationType.Q8_0)
    writer = GGUFWriter(tmp_path / "m.gguf", "qwen3moe")
    for name in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"qwen3moe.{name}", 64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_tensor("blk.1.ffn_up_exps.weight", blocks, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", np.zeros((4, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    gguf = GgufFile(tmp_path / "m.gguf")
    for i, expert in enumerate(dequantize(blocks, GGMLQuantizationType.Q8_0)):
        name = f"model.layers.1.mlp.experts.{i}.up_proj.weight"
        assert gguf.shapes[name] == (6, 64)
        assert np.array_equal(gguf.read(name).numpy(), expert)


@pytest.mark.parametrize("share", [0.0001, 0.003, 0.01, 0.1, 0.5, 0.999])
def test_a_truncated_gguf_file_is_refused(tiny_model: TinyModel, tmp_path: Path, share: float) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "model.gguf")
    data = path.read_bytes()
    path.write_bytes(data[: max(4, int(len(data) * share))])
    assert "damaged or incomplete" in refused(path)


@pytest.mark.slow
def test_a_gguf_file_with_any_bytes_overwritten_is_read_or_refused(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    whole = write_gguf(tiny_model("llama"), tmp_path / "whole.gguf").read_bytes()
    draw = random.Random(3)
    sentences = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3])):
            data[draw.randrange(3000)] = draw.randrange(256)
        (tmp_path / "damaged.gguf").write_bytes(data)
        try:
            load_model(str(tmp_path / "damaged.gguf"), torch.float32)
        except ModelError:
            sentences += 1
    assert sentences > 75


def test_a_gguf_file_with_the_wrong_number_of_rotary_divisors_is_refused(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "model.gguf", divisors=np.ones(5, np.float32))
    assert "5 rotary divisors" in refused(path)


def test_a_gguf_file_of_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "of the architecture 'mamba' are not supported; supported are gemma3, llama, phi3" in refused(
        tmp_path / "m.gguf"
    )


def test_a_gguf_file_without_what_the_config_needs_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "lacks llama.context_length" in refused(tmp_path / "m.gguf")


# ------------------------------------------------------------------------------- dummy, names, fingerprint


def test_random_weights_need_the_config_only_and_are_the_same_each_time(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    one, two = (decoder_of(folder, "dummy") for _ in range(2))
    first, second, other = one.layers[2].attention, two.layers[2].attention, one.layers[1].attention
    assert torch.equal(first.output.weight, second.output.weight)
    assert not torch.equal(first.output.weight, other.output.weight)


def test_a_model_that_is_not_there_is_refused_with_what_may_be_given(tmp_path: Path) -> None:
    assert "There is no model at" in refused(tmp_path / "absent")
    assert "There is no model at ./some/model.gguf" in refused("./some/model.gguf")
    assert "There is no model at some/model.gguf" in refused("some/model.gguf")
    assert "There is no model at smollm" in refused("smollm")
    assert "No model is given" in refused("")
    assert "has no config.json" in refused(tmp_path)


def test_a_folder_that_holds_a_gguf_file_points_at_it(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert f"give the file itself, such as {tmp_path / 'a.gguf'}" in refused(tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"<html>")
    assert "is not a GGUF file" in refused(tmp_path / "model.gguf")


def test_a_hub_that_does_not_answer_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> str:
        raise OSError("no route to host\nand a long trace")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert "some/model is not here and could not be downloaded (no route to host)" in refused("some/model")


def test_models_are_called_by_folder_or_file_without_quantisation(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    path = write_gguf(tiny_model("qwen2"), tmp_path / "Tiny-Qwen2.Q4_K_M.gguf")
    assert load_model(str(path), torch.float32).name == "Tiny-Qwen2"
    assert load_model(str(tiny_model("qwen2")), torch.float32).name == tiny_model("qwen2").name


def test_a_fingerprint_follows_the_contents_and_not_the_place(tiny_model: TinyModel, tmp_path: Path) -> None:
    name = "qwen2"
    copy = Path(shutil.copytree(tiny_model(name), tmp_path / "elsewhere"))
    here, there = (load_model(str(x), torch.float32).fingerprint for x in (tiny_model(name), copy))
    assert here == there
    assert load_model(str(copy), torch.float32, "dummy").fingerprint != here
    change_config(copy, rope_theta=123.0)
    changed = load_model(str(copy), torch.float32).fingerprint
    assert changed != here
    change_weights(copy, model__norm__weight=torch.zeros(64))
    assert load_model(str(copy), torch.float32).fingerprint not in (here, changed)


def test_a_fingerprint_sees_the_ends_of_a_file(tmp_path: Path) -> None:
    seen = set()
    for data in (b"a" * 500_000, b"a" * 499_999 + b"b", b"b" + b"a" * 499_999, b"a" * 500_001):
        (tmp_path / "file").write_bytes(data)
        seen.add(fingerprint_files([tmp_path / "file"]))
    assert len(seen) == 4
