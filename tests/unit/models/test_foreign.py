"""Decoders that are not written out here answer as transformers does, or are refused by name."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.modeling_utils import PreTrainedModel

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.folder import check_config
from headrace.gpu_engine.models.foreign.decoder import TransformersDecoder
from headrace.gpu_engine.models.load import load_model
from headrace.gpu_engine.runner import load_runner
from tests.support.drive import Sequences
from tests.support.reference_answers import Comparison, answer_greedily
from tests.support.tiny_models import COMMON, load_reference, save_config

torch.set_num_threads(1)

SMALL: dict[str, Any] = COMMON | {"pad_token_id": 0}

SERVED: dict[str, dict[str, Any]] = {
    "olmo2": {},
    "stablelm": {},
    "gpt_neox": {},
    "granite": {"logits_scaling": 3.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    "cohere2": {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "starcoder2": {"sliding_window": 20},
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "gpt2": {},
    "mixtral": {"num_local_experts": 4},
}
"""By `model_type`, with what is special about them."""

Saved = Callable[[str], Path]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The folder of a tiny model by its type."""

    @cache
    def folder(name: str) -> Path:
        values = SMALL | SERVED[name]
        values["num_hidden_layers"] = len(values.get("layer_types", [1, 2, 3]))
        return save_config(AutoConfig.for_model(name, **values), tmp_path_factory.mktemp(name))

    return folder


def refused(folder: Path, **values: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(folder), torch.float32, **values)
    sentence = str(caught.value)
    assert sentence.endswith("."), sentence
    assert "\n" not in sentence
    return sentence


def describe(folder: Path, **values: Any) -> Path:
    """A folder that holds a config.json only."""
    (folder / "config.json").write_text(json.dumps(SMALL | values))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_greedy_tokens_equal_transformers_in_a_batch_of_chunks_beyond_the_window(
    saved: Saved, name: str
) -> None:
    draw = random.Random(3)
    prompts = [[draw.randrange(2, 384) for _ in range(length)] for length in (1, 5, 33, 90)]
    answers = answer_greedily(load_reference(saved(name)), prompts, 12)
    runner = load_runner(EngineConfig(model=str(saved(name)), num_kv_blocks=64))
    assert isinstance(runner._model, TransformersDecoder)
    comparison = Comparison()
    for seed, largest_chunk in ((1, 7), (2, 100)):
        ours = Sequences(runner, prompts, 12, seed).run(largest_chunk)
        for prompt, token_ids in zip(prompts, ours, strict=True):
            comparison.compare(f"{len(prompt)}", token_ids, answers[tuple(prompt)])
    comparison.check()


def test_transformers_makes_neither_a_cache_nor_a_mask(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("made by transformers")

    runner = load_runner(EngineConfig(model=str(saved("cohere2")), num_kv_blocks=64))
    monkeypatch.setattr("transformers.cache_utils.DynamicCache.__init__", fail)
    for mask in ("sdpa_mask", "eager_mask", "find_packed_sequence_indices"):
        monkeypatch.setattr(f"transformers.masking_utils.{mask}", fail)
    assert Sequences(runner, [[5, 6, 7]], 4, seed=1).run(2)


def test_windows_that_no_sequence_outgrows_are_none(saved: Saved, tmp_path: Path) -> None:
    decoder = load_model(str(saved("cohere2")), torch.float32).decoder
    assert decoder.kv_spec(16).windows == (20, None) * 2
    wide = describe(tmp_path, model_type="starcoder2", sliding_window=512)
    assert load_model(str(wide), torch.float32, "dummy").decoder.kv_spec(16).windows == ()


def test_random_weights_need_the_config_only_and_are_the_same_each_time(tmp_path: Path) -> None:
    folder = describe(tmp_path, model_type="olmo2")
    before = torch.random.get_rng_state()
    one, two = (load_model(str(folder), torch.bfloat16, "dummy").decoder for _ in range(2))
    assert isinstance(one, TransformersDecoder)
    assert isinstance(two, TransformersDecoder)
    assert one.dtype == torch.bfloat16
    assert torch.equal(one.model.lm_head.weight, two.model.lm_head.weight)
    assert torch.equal(torch.random.get_rng_state(), before)


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "t5"}, "'t5' are not supported"),
        ({"model_type": "vit"}, "'vit' are not supported"),
        ({"model_type": "mamba"}, "uses linear_attention"),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"]}, "uses conv"),
        ({"model_type": "qwen3_next"}, "uses linear_attention"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"model_type": "olmo2", "quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"model_type": "olmo2", "vocab_size": 0}, "vocab_size is 0"),
        ({"model_type": "olmo2", "num_hidden_layers": 10**7}, "num_hidden_layers is 10000000"),
        ({"model_type": "olmo2", "hidden_size": "x"}, "expected int, got str"),
        ({"model_type": "olmo2", "max_position_embeddings": 1}, "max_position_embeddings is 1"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused_before_anything_is_read(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    with pytest.raises(ModelError) as caught:
        check_config(describe(tmp_path, **values))
    assert why in str(caught.value)
    assert why in refused(tmp_path, load_format="dummy")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "bert"}, "attends in both directions"),
        ({"model_type": "xglm"}, "'xglm' do not use transformers' attention interface"),
        ({"model_type": "falcon"}, "'falcon' do not use transformers' attention interface"),
        ({"model_type": "opt"}, "'opt' cannot be run through transformers"),
        ({"model_type": "gpt_oss"}, "adds sinks"),
        ({"model_type": "deepseek_v3", "n_group": 1}, "differ in size"),
        ({"model_type": "olmo2", "num_key_value_heads": 3}, "differ in size"),
        ({"model_type": "olmo2", "pad_token_id": 999}, "cannot be run through transformers (Padding_idx"),
        ({"model_type": "olmo2", "vocab_size": 10**12}, "and this machine has"),
        ({"model_type": "helium", "head_dim": 24}, "helium"),
    ],
)
def test_a_model_that_cannot_be_paged_is_refused_by_name(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    assert why in refused(describe(tmp_path, **values), load_format="dummy")


def test_a_window_that_attention_is_not_told_of_is_refused(tmp_path: Path) -> None:
    folder = describe(tmp_path, model_type="olmo2", sliding_window=8)
    assert "do not tell attention which of their layers see a window" in refused(folder, load_format="dummy")


def test_a_model_whose_rows_see_each_other_is_refused(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a convolution over the row would."""
    monkeypatch.setattr(
        "transformers.models.olmo2.modeling_olmo2.Olmo2MLP.forward",
        lambda self, x: self.down_proj(self.up_proj(x + x.roll(1, dims=1))),
    )
    assert "answer differently when their requests are computed together" in refused(saved("olmo2"))


def test_a_model_that_counts_positions_itself_is_refused(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PreTrainedModel.base_model.fget
    assert forward is not None

    class Counting(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base

        def forward(self, position_ids: torch.Tensor, **options: Any) -> Any:
            return self.base(position_ids=torch.arange(position_ids.shape[1])[None], **options)

    monkeypatch.setattr(PreTrainedModel, "base_model", property(lambda self: Counting(forward(self))))
    assert "answer differently" in refused(saved("olmo2"))


def test_sequences_that_a_longer_neighbour_would_change_stay_below_the_original_context(
    tmp_path: Path,
) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "short_factor": [1.0] * 8}
    rope |= {"long_factor": [2.0] * 8, "original_max_position_embeddings": 128}
    folder = describe(tmp_path, model_type="olmo2", rope_parameters=rope)
    assert load_model(str(folder), torch.float32, "dummy").decoder.config.max_context == 128


# ---------------------------------------------------------------------------------------------- weights


@pytest.fixture
def copied(saved: Saved, tmp_path: Path) -> Path:
    """A copy of the tiny OLMo 2 that a test may damage."""
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((saved("olmo2") / file).read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model.norm.weight": None}, "lack model.norm.weight;"),
        ({"model.more.weight": torch.zeros(2)}, "does not have: model.more.weight;"),
        ({"model.norm.weight": torch.zeros(32)}, "other shapes than a model of this config in"),
    ],
)
def test_weights_that_are_not_the_configs_are_named(
    copied: Path, change: dict[str, torch.Tensor | None], why: str
) -> None:
    tensors = load_file(copied / "model.safetensors") | change
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, copied / "model.safetensors", {"format": "pt"})
    assert why in refused(copied)


def test_truncated_and_pickled_weights_are_refused(copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "damaged or incomplete" in refused(copied)
    weights.rename(copied / "pytorch_model.bin")
    assert "pytorch_model.bin" in refused(copied)


def test_code_of_a_checkpoint_is_not_run(copied: Path) -> None:
    """A config that names code of its own is served by transformers' class of its type."""
    (copied / "evil.py").write_text("raise SystemExit('ran')")
    config = json.loads((copied / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (copied / "config.json").write_text(json.dumps(config))
    assert isinstance(load_model(str(copied), torch.float32).decoder, TransformersDecoder)
