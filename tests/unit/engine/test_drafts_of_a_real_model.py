"""Real models with drafts say what they say without, in every arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch

from headrace.gpu_engine.api import EngineRequest, SamplingParams, TokenLogprobs
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.models.decoder import Decoder
from headrace.gpu_engine.native.decoder import NativeDecoder
from headrace.gpu_engine.runner import ModelRunner, load_runner
from headrace.gpu_engine.sampling.controls import Controls
from headrace.gpu_engine.speculation.drafter import Drafter
from headrace.gpu_engine.speculation.pace import Steady
from tests.support.native import compiled
from tests.support.step_engine import make_engine
from tests.support.tiny_models import TinyModel, tiny_model

__all__ = ["tiny_model"]

TOKENS = 40
LONG = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)


@dataclass
class Said:
    """One answer."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(frozen=True)
class Always:
    """Makes drafters that guess these tokens."""

    tokens: Sequence[int]

    def make(self, controls: Controls | None) -> Drafter:
        return Drafter(self, Steady(6))

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        return [*self.tokens[:count]]


@dataclass(frozen=True)
class Oracle:
    """Makes drafters that know the answers, but for one token in six."""

    answers: Sequence[Sequence[int]]
    random: Random

    def make(self, controls: Controls | None) -> Drafter:
        return Drafter(self, Steady(6))

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        [known] = [one for one in self.answers if one[: len(token_ids)] == token_ids]
        truth = known[len(token_ids) : len(token_ids) + count]
        return [token if self.random.random() < 5 / 6 else 7 for token in truth]


def params_of(number: int) -> SamplingParams:
    """Greedy and seeded ones take turns; two of three tell of their tokens."""
    temperature, seed = (0.0, None) if number % 2 else (1.2, number)
    return SamplingParams(
        temperature=temperature,
        seed=seed,
        top_p=0.95,
        max_tokens=TOKENS,
        ignore_eos=True,
        logprobs=2 if number % 3 else None,
    )


def run(engine: StepEngine, prompts: Sequence[Sequence[int]]) -> list[Said]:
    for number, prompt in enumerate(prompts):
        one = EngineRequest(id=str(number), prompt_ids=[*prompt], params=params_of(number))
        assert engine.add(one) is None
    answers = [Said() for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            answers[int(output.id)].token_ids += output.token_ids
            answers[int(output.id)].logprobs += output.logprobs
        engine.check_invariants()
    return answers


def settings_of(tiny_model: TinyModel, name: str, **fields: Any) -> EngineConfig:
    sizes = {"block_size": 8, "num_kv_blocks": 120, "max_batch_tokens": 32, "swap_space_bytes": 1 << 20}
    return EngineConfig.model_validate({"model": str(tiny_model(name)), "threads": 1, **sizes, **fields})


def prompts_of(random: Random) -> list[list[int]]:
    """Some repeat themselves."""
    lengths = [1, 7, 8, 23, 40]
    prompts = [[random.randrange(2, 300) for _ in range(length)] for length in lengths]
    return [prompt + prompt[: length // 2] for prompt, length in zip(prompts, lengths, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "arithmetic",
    [
        pytest.param({"backend": "native", "weight_format": "float32"}, marks=compiled, id="float32"),
        pytest.param({"backend": "native", "weight_format": "int16"}, marks=compiled, id="int16"),
        pytest.param({"backend": "native", "weight_format": "int8"}, marks=compiled, id="int8"),
        pytest.param({"backend": "torch"}, id="torch"),
    ],
)
def test_greedy_and_seeded_answers_with_drafts_are_the_same_through_preemptions(
    tiny_model: TinyModel, name: str, arithmetic: dict[str, Any]
) -> None:
    """On the native kernels bit for bit, as the log probabilities show."""
    config, random = settings_of(tiny_model, name, **arithmetic), Random(5)
    runner, prompts = load_runner(config), prompts_of(random)
    alone = run(make_engine(runner, config, 100), prompts)

    def sometimes(step: int, running: Sequence[str]) -> Sequence[str]:
        return [one for one in running if random.random() < 0.15]

    engine = make_engine(runner, config, 60, sometimes)
    known = [prompt + said.token_ids for prompt, said in zip(prompts, alone, strict=True)]
    engine._drafters = Oracle(known, random)  # type: ignore[assignment]  # which is of its shape
    drafted = run(engine, prompts)
    stats = engine.stats
    assert stats.preemptions > 5
    assert 0.3 * stats.draft_tokens < stats.accepted_tokens < stats.draft_tokens
    assert [said.token_ids for said in drafted] == [said.token_ids for said in alone]
    if arithmetic["backend"] == "native":
        assert drafted == alone


@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_a_guess_whose_row_is_not_finite_fails_nobody(tiny_model: TinyModel, attention: str) -> None:
    """It may spoil the rows before it, where masked keys are multiplied by zero: the step is taken again."""
    runner = load_runner(settings_of(tiny_model, "qwen2", attention=attention))
    config = settings_of(tiny_model, "qwen2", attention=attention)
    prompts = [[3, 4, 5], [7, 7, 5, 6]]
    alone = run(make_engine(runner, config, 60), prompts)
    poison(runner, 9)
    engine = make_engine(runner, config, 60)
    engine._drafters = Always([9, 9])  # type: ignore[assignment]  # which is of its shape
    assert run(engine, prompts) == alone
    assert engine.stats.accepted_tokens == 0


@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_a_right_guess_that_is_not_finite_fails_as_it_would_without_drafts(
    tiny_model: TinyModel, attention: str
) -> None:
    runner = load_runner(settings_of(tiny_model, "qwen2", attention=attention))
    config = settings_of(tiny_model, "qwen2", attention=attention)
    [answer] = run(make_engine(runner, config, 60), [[3, 4, 5]])
    fatal = next(i for i, token in enumerate(answer.token_ids) if token not in answer.token_ids[:i] and i > 4)
    poison(runner, answer.token_ids[fatal])
    engine = make_engine(runner, config, 60)
    engine._drafters = Oracle([[3, 4, 5, *answer.token_ids]], Random(1))  # type: ignore[assignment]
    assert engine.add(EngineRequest(id="r", prompt_ids=[3, 4, 5], params=params_of(0))) is None
    outputs = [output for _ in range(fatal + 9) for output in engine.step()]
    assert [token for output in outputs for token in output.token_ids] == answer.token_ids[: fatal + 1]
    assert outputs[-1].error is not None


def poison(runner: ModelRunner, token: int) -> None:
    decoder = runner._model
    assert isinstance(decoder, Decoder | NativeDecoder)
    decoder.embeddings[token] = torch.nan


def test_a_text_that_repeats_itself_takes_a_fraction_of_the_steps(tiny_model: TinyModel) -> None:
    """A model that does not look back goes round in circles soon."""
    runner = load_runner(settings_of(tiny_model, "llama", backend="torch"))
    decoder = runner._model
    assert isinstance(decoder, Decoder)
    for layer in decoder.layers:
        layer.attention.output.weight.zero_()
    said, steps = list[list[int]](), list[int]()
    for method in ("none", "ngram"):
        config = settings_of(tiny_model, "llama", speculative_method=method, adaptive_speculation=False)
        engine = make_engine(runner, config, 100)
        one = EngineRequest(id="r", prompt_ids=[5, 6, 7, 8], params=LONG)
        assert engine.add(one) is None
        outputs = list[list[int]]()
        while engine.has_work:
            outputs += [output.token_ids for output in engine.step()]
        steps.append(len(outputs))
        said.append([token for tokens in outputs for token in tokens])
    assert said[0] == said[1]
    assert steps[0] == LONG.max_tokens
    assert steps[1] < steps[0] / 3
    assert engine.stats.accepted_tokens > 0.5 * engine.stats.draft_tokens
