"""Penalties, bad words, least lengths and log probabilities of a real model are those of transformers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from headrace.gpu_engine.api import EngineRequest, Output, SamplingParams, TokenLogprobs
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.runner import load_runner
from tests.support.step_engine import make_engine
from tests.support.tiny_models import TinyModel, load_reference

torch.set_num_threads(1)

LENGTHS = [1, 9, 17, 40]
TOKENS = 24


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Of few different tokens, so that penalties have something to bite on."""
    draw = random.Random(4)
    return [[draw.randrange(2, 40) for _ in range(length)] for length in lengths]


@pytest.fixture
def engine(tiny_model: TinyModel) -> StepEngine:
    values = {"model": str(tiny_model("llama")), "num_kv_blocks": 64, "attention": "reference"}
    config = EngineConfig.model_validate({**values, "max_batch_tokens": 11, "max_batch_size": 4})
    return make_engine(load_runner(config), config, 64)


def run(engine: StepEngine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Output]]:
    for i, prompt in enumerate(prompts):
        assert engine.add(EngineRequest(id=str(i), prompt_ids=list(prompt), params=params)) is None
    outputs: list[list[Output]] = [[] for _ in prompts]
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            outputs[int(output.id)].append(output)
    return outputs


def tokens_of(outputs: Sequence[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["repetition_penalty", "bad_words", "min_tokens", "all"])
def test_greedy_tokens_are_those_of_generate(engine: StepEngine, tiny_model: TinyModel, name: str) -> None:
    reference, prompts = load_reference(tiny_model("llama")), prompts_of(LENGTHS)
    plain = [
        tokens_of(outputs) for outputs in run(engine, prompts, SamplingParams(temperature=0, max_tokens=4))
    ]
    banned = [[answer[0]] for answer in plain[:2]] + [answer[1:3] for answer in plain]
    end = plain[3][0]
    ours: dict[str, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": 1.3},
        "bad_words": {"bad_words": tuple(" ".join(map(str, word)) for word in banned)},
        "min_tokens": {"min_tokens": 6, "stop_token_ids": (end,)},
    }
    theirs: dict[str, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": 1.3},
        "bad_words": {"bad_words_ids": banned},
        "min_tokens": {"min_new_tokens": 6, "eos_token_id": end},
    }
    names = [*ours] if name == "all" else [name]
    params = {key: value for one in names for key, value in ours[one].items()}
    answers = run(engine, prompts, SamplingParams(temperature=0, max_tokens=TOKENS, **params))
    options = {"eos_token_id": None, **{key: value for one in names for key, value in theirs[one].items()}}
    for prompt, answer in zip(prompts, answers, strict=True):
        given = torch.tensor([prompt])
        expected = reference.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=TOKENS, **options
        )
        assert tokens_of(answer) == expected[0, len(prompt) :].tolist()


def test_log_probabilities_of_prompt_and_answer_are_the_log_softmax_of_the_reference(
    engine: StepEngine, tiny_model: TinyModel
) -> None:
    """However the prompt is cut, whatever the prefix cache holds of it, whatever shapes the draw."""
    reference, prompts = load_reference(tiny_model("llama")), prompts_of(LENGTHS)
    run(engine, prompts, SamplingParams(temperature=0, max_tokens=2))
    params = SamplingParams(
        seed=3, temperature=1.5, top_k=9, presence_penalty=2, logprobs=3, prompt_logprobs=2, max_tokens=5
    )
    for prompt, outputs in zip(prompts, run(engine, prompts, params), strict=True):
        tokens = tokens_of(outputs)
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *tokens]])).logits[0]
        expected = logits.double().log_softmax(-1)
        told = [score for output in outputs for score in output.prompt_logprobs + output.logprobs]
        assert [score.token for score in told] == [*prompt[1:], *tokens]
        assert [len(score.top) for score in told] == [2] * (len(prompt) - 1) + [3] * 5
        for score, row in zip(told, expected, strict=False):
            check(score, row)


def check(score: TokenLogprobs, row: torch.Tensor) -> None:
    assert score.logprob == pytest.approx(float(row[score.token]), abs=1e-4)
    best = row.topk(len(score.top)).values.tolist()
    assert [value for _, value in score.top] == pytest.approx(best, abs=1e-4)
    assert [float(row[token]) for token, _ in score.top] == pytest.approx(best, abs=1e-4)
