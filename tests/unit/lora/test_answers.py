"""Answers through adapters equal those of transformers with the adapter merged in, token for token."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.runner import ModelRunner, load_runner
from tests.support.lora import Asked, answer_all, load_merged, save_adapter
from tests.support.native import compiled
from tests.support.reference_answers import Comparison, answer_greedily
from tests.support.step_engine import make_engine
from tests.support.tiny_models import COMMON, TinyModel, save_config

torch.set_num_threads(1)

BLOCK = 16
TOKENS = 10
BACKENDS = ["torch", pytest.param("native", marks=compiled)]
ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"seed": 1, "rank": 4},
    "narrow": {"seed": 2, "rank": 3, "targets": ["q_proj", "v_proj"], "use_rslora": True},
    "patterns": {
        "seed": 3,
        "rank": 2,
        "lora_alpha": 3,
        "ranks": {"down_proj": 17, "layers.1.self_attn.q_proj": 9},
        "rank_pattern": {"down_proj": 17, "layers.1.self_attn.q_proj": 9},
        "alpha_pattern": {"up_proj": 5},
    },
}


class Zoo:
    """A tiny model, some adapters for it, and what transformers answers with each."""

    def __init__(self, model: Path, folder: Path, adapters: Mapping[str, Mapping[str, Any]]) -> None:
        self.model = model
        self.folders = {name: save_adapter(folder / name, model, **how) for name, how in adapters.items()}

    def runner(self, **config: object) -> ModelRunner:
        modules = {name: str(path) for name, path in self.folders.items()}
        fields = {"model": str(self.model), "num_kv_blocks": 128, "lora_modules": modules, **config}
        return load_runner(EngineConfig.model_validate(fields))

    @cache  # noqa: B019 (as long as the session's models)
    def reference(self, adapter: str | None) -> Any:
        return load_merged(self.model, None if adapter is None else self.folders[adapter])

    def check(self, asked: Sequence[Asked], answers: Sequence[Sequence[int]]) -> None:
        comparison = Comparison()
        for name in {adapter for _, adapter in asked}:
            mine = [(tuple(p), a) for (p, of), a in zip(asked, answers, strict=True) if of == name]
            expected = answer_greedily(self.reference(name), [prompt for prompt, _ in mine], TOKENS)
            for prompt, answer in mine:
                comparison.compare(f"{name}, {len(prompt)} tokens", answer, expected[prompt])
        comparison.check()


@pytest.fixture(scope="module")
def zoo(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return Zoo(tiny_model("llama"), tmp_path_factory.mktemp("adapters"), ADAPTERS)


def mixed(count: int, names: Sequence[str | None], seed: int = 0) -> list[Asked]:
    draw = random.Random(seed)
    lengths = [draw.choice([3, 15, 16, 17, 40]) for _ in range(count)]
    prompts = [[draw.randrange(2, 384) for _ in range(length)] for length in lengths]
    return [(prompt, names[i % len(names)]) for i, prompt in enumerate(prompts)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_three_adapters_and_the_bare_model_answer_side_by_side(zoo: Zoo, backend: str) -> None:
    asked = mixed(12, [None, *ADAPTERS])
    engine = make_engine(
        zoo.runner(backend=backend), EngineConfig(max_batch_size=12, max_batch_tokens=60), 100
    )
    answers, _ = answer_all(engine, asked, TOKENS)
    zoo.check(asked, answers)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_preempted_request_goes_on_with_its_adapter(zoo: Zoo, backend: str) -> None:
    asked = mixed(6, [None, *ADAPTERS], seed=1)
    config = EngineConfig(max_batch_size=6, max_batch_tokens=50)
    engine = make_engine(zoo.runner(backend=backend), config, 100, lambda step, running: running)
    answers, _ = answer_all(engine, asked, TOKENS)
    assert engine.preemptions > 0
    zoo.check(asked, answers)


def test_the_prefix_cache_is_shared_within_an_adapter_and_not_beyond(zoo: Zoo) -> None:
    prompt = list(range(2, 2 + 3 * BLOCK + 1))
    engine = make_engine(zoo.runner(), EngineConfig(max_batch_size=4, max_batch_tokens=60), 100)
    names: list[str | None] = [None, "plain", "narrow"]
    answers = []
    for hit in (0, 3 * BLOCK):
        for name in names:
            [answer], [cached] = answer_all(engine, [(prompt, name)], TOKENS)
            assert cached == hit, name
            answers.append(answer)
    zoo.check([(prompt, name) for name in [*names, *names]], answers)


def test_guesses_at_an_answer_are_verified_with_its_adapter(zoo: Zoo) -> None:
    asked: list[Asked] = [([7, 9, 11, 13] * 6, name) for name in (None, *ADAPTERS)]
    config = EngineConfig(
        max_batch_size=4, speculative_method="ngram", prompt_lookup_min=1, adaptive_speculation=False
    )
    engine = make_engine(zoo.runner(), config, 100)
    answers, _ = answer_all(engine, asked, TOKENS)
    assert engine.stats.draft_tokens > 0
    zoo.check(asked, answers)


def test_an_adapter_that_is_not_there_is_refused_with_those_that_are(zoo: Zoo) -> None:
    engine = make_engine(zoo.runner(), EngineConfig(), 100)
    error = engine.add(EngineRequest(id="a", prompt_ids=[3], adapter="poems"))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", "adapter")
    assert error.message == "There is no LoRA adapter 'poems': there are narrow, patterns, plain."


@pytest.mark.parametrize("model", ["phi3", "gemma3", "qwen3-moe-mixed"])
def test_other_families_have_adapters_too(tiny_model: TinyModel, tmp_path: Path, model: str) -> None:
    """Phi-3 with its fused projections, Gemma with norms behind them, experts with adapters beside them."""
    zoo = Zoo(tiny_model(model), tmp_path, {"plain": {"seed": 4}})
    asked = mixed(4, ["plain", None], seed=2)
    engine = make_engine(zoo.runner(), EngineConfig(max_batch_size=4, max_batch_tokens=60), 100)
    answers, _ = answer_all(engine, asked, TOKENS)
    zoo.check(asked, answers)


def test_bfloat16_weights_take_adapters(zoo: Zoo) -> None:
    """Answers are nobody's reference there: only that the adapter has its say."""
    for backend in ("torch", "auto"):
        runner = zoo.runner(backend=backend, dtype="bfloat16")
        engine = make_engine(runner, EngineConfig(max_batch_size=2), 100)
        prompt = list(range(20))
        (bare, adapted), _ = answer_all(engine, [(prompt, None), (prompt, "plain")], TOKENS)
        assert bare != adapted


def test_a_model_that_transformers_computes_has_none(tmp_path: Path) -> None:
    folder = save_config(AutoConfig.for_model("stablelm", **COMMON, pad_token_id=0), tmp_path)
    config = EngineConfig(model=str(folder), lora_modules={"sql": "somewhere"})
    with pytest.raises(ModelError, match=r"LoRA adapters cannot be added to .* which transformers computes"):
        load_runner(config)
