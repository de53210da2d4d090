"""From a configuration to an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from headrace.gpu_engine.build import EngineUnusable, build_engine, load_engine
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.text.sim import SimTokenizer
from tests.unit.engine_host.fakes import drive, last_of, request

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": SimTokenizer.vocab_size,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def test_the_simulated_engine_needs_no_model() -> None:
    engine = build_engine(EngineConfig(engine="sim", model="any name", max_batch_size=7))
    assert (engine.info.model, engine.info.max_batch_size) == ("any name", 7)
    assert (engine.info.max_input_length, engine.info.max_total_tokens) == (8192, 16384)


def test_the_simulated_engine_refuses_to_guess() -> None:
    with pytest.raises(EngineUnusable, match="speculative_method at none"):
        build_engine(EngineConfig(engine="sim", speculative_method="ngram"))


@pytest.mark.parametrize("model", ["", "/no/such/model", "/no/such/model.gguf"])
def test_a_model_that_is_not_there_makes_the_engine_unusable(model: str) -> None:
    with pytest.raises(EngineUnusable, match="model"):
        build_engine(EngineConfig(model=model))


def test_a_wrong_config_is_not_called_a_wrong_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"rms_norm_eps": None}))
    with pytest.raises(EngineUnusable, match=r"config\.json is wrong \(.*rms_norm_eps"):
        build_engine(EngineConfig(model=str(tmp_path)))


def test_memory_that_runs_out_while_a_model_is_loaded_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    config = EngineConfig(model=str(tmp_path), load_format="dummy")
    monkeypatch.setattr("headrace.gpu_engine.runner.load_runner", lambda _: torch.empty(1 << 56))
    with pytest.raises(EngineUnusable, match="too little memory for the model"):
        build_engine(config)


def test_other_failures_of_torch_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    config = EngineConfig(model=str(tmp_path), load_format="dummy")
    monkeypatch.setattr("headrace.gpu_engine.runner.load_runner", lambda _: torch.empty(-1))
    with pytest.raises(RuntimeError, match="negative"):
        build_engine(config)


@pytest.mark.slow
def test_a_model_with_random_weights_needs_nothing_but_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    config = EngineConfig(model=str(tmp_path), load_format="dummy", num_kv_blocks=16, threads=1)
    loaded = load_engine(config)
    assert isinstance(loaded.tokenizer, SimTokenizer)
    assert loaded.engine.add(request("r")) is None
    assert last_of(drive(loaded.engine), "r").finish_reason in ("stop", "length")
    assert load_engine(config).engine.info == loaded.engine.info, "the same fingerprint on every start"
