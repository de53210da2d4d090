"""Vectors of texts are those of transformers' hidden states, however the work is cut up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch

from headrace.gpu_engine.api import EmbedParams, EngineRequest, Output, SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.pooling import PoolerMaker
from headrace.gpu_engine.embedding.several import SeveralTexts
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.runner import load_runner
from tests.support.step_engine import IdTokenizer
from tests.support.tiny_models import TinyModel, load_reference, tiny_model

__all__ = ["tiny_model"]

torch.set_num_threads(1)

LENGTHS = [1, 9, 16, 17, 40, 70]
TORCH = {"attention": "reference"}
Kind = Literal["mean", "last"]
Numbers = npt.NDArray[np.float64]


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(2, 384) for _ in range(length)] for length in lengths]


def engine_of(
    tiny_model: TinyModel, kind: Kind, *, normalize: bool = True, name: str = "llama", **config: object
) -> StepEngine:
    values: dict[str, object] = {"model": str(tiny_model(name)), "num_kv_blocks": 64, "max_batch_size": 4}
    settings = EngineConfig.model_validate(values | {"max_batch_tokens": 11, "threads": 1} | config)
    runner = load_runner(settings)
    return StepEngine(
        settings,
        runner,
        IdTokenizer(),
        model="tiny",
        fingerprint="tiny",
        max_context=runner.max_context,
        vocab_size=runner.vocab_size,
        poolers=PoolerMaker(kind, normalize, runner.hidden_size),
    )


def embed(
    engine: StepEngine, prompts: Sequence[Sequence[int]], dimensions: int | None = None
) -> list[list[float]]:
    """Vectors of the prompts, side by side in one engine."""
    asked = EmbedParams(dimensions=dimensions)
    for i, prompt in enumerate(prompts):
        assert engine.add(EngineRequest(id=str(i), prompt_ids=list(prompt), embed=asked)) is None
    last = run(engine)
    vectors = [last[str(i)] for i in range(len(prompts))]
    assert all(not one.token_ids and not one.text for one in vectors)
    return [one.embedding for one in vectors]


def run(engine: StepEngine) -> dict[str, Output]:
    """The last output of each request."""
    last = {}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            last[output.id] = output
        engine.check_invariants()
    return last


def expected(tiny_model: TinyModel, prompts: Sequence[Sequence[int]], kind: Kind) -> list[Numbers]:
    base = load_reference(tiny_model("llama")).model
    with torch.inference_mode():
        rows = [base(torch.tensor([prompt])).last_hidden_state[0].double().numpy() for prompt in prompts]
    return [one.mean(axis=0) if kind == "mean" else one[-1] for one in rows]


@pytest.mark.parametrize("kind", ["mean", "last"])
@pytest.mark.parametrize("backend", ["torch", "auto"])
def test_vectors_are_the_pooled_hidden_states_of_transformers(
    tiny_model: TinyModel, backend: str, kind: Kind
) -> None:
    prompts = prompts_of(LENGTHS)
    ours = embed(engine_of(tiny_model, kind, backend=backend), prompts)
    for vector, pooled in zip(ours, expected(tiny_model, prompts, kind), strict=True):
        np.testing.assert_allclose(vector, pooled / np.linalg.norm(pooled), rtol=0, atol=1e-5)


def test_a_folder_without_the_models_head_gives_the_same_vectors(
    tiny_model: TinyModel, tmp_path: Path
) -> None:
    """Models for embeddings are saved so, with other names for all tensors."""
    prompts = prompts_of([9, 40])
    load_reference(tiny_model("llama")).model.save_pretrained(tmp_path)
    bare = embed(engine_of(lambda _: tmp_path, "last"), prompts)
    assert bare == embed(engine_of(tiny_model, "last"), prompts)


def test_fewer_dimensions_are_the_first_ones_at_unit_length_again(tiny_model: TinyModel) -> None:
    [prompt] = prompts_of([9])
    [pooled] = expected(tiny_model, [prompt], "mean")
    [short] = embed(engine_of(tiny_model, "mean"), [prompt], dimensions=5)
    np.testing.assert_allclose(short, pooled[:5] / np.linalg.norm(pooled[:5]), rtol=0, atol=1e-5)
    [plain] = embed(engine_of(tiny_model, "mean", normalize=False), [prompt])
    np.testing.assert_allclose(plain, pooled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_native_vectors_are_the_same_bit_for_bit_whatever_cuts_and_evicts_them(
    tiny_model: TinyModel, kind: Kind
) -> None:
    """Blocks for few of the texts at a time, and answers of a higher lane that come in the middle of them."""
    prompts = prompts_of(LENGTHS)
    alone = embed(engine_of(tiny_model, kind, max_batch_tokens=512, max_batch_size=1), prompts)
    narrow = engine_of(tiny_model, kind, num_kv_blocks=8, max_batch_tokens=5, watermark=0)
    for i, prompt in reversed([*enumerate(prompts)]):
        assert narrow.add(EngineRequest(id=str(i), prompt_ids=prompt, embed=EmbedParams())) is None
    last: dict[str, Output] = {}
    for number in count():
        if number % 4 == 3 and number < 40:
            params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
            answer = EngineRequest(id=f"a{number}", prompt_ids=prompts[4], params=params, priority=0)
            assert narrow.add(answer) is None
        last |= {output.id: output for output in narrow.step()}
        if not narrow.has_work:
            break
    assert [last[str(i)].embedding for i in range(len(prompts))] == alone
    assert narrow.preemptions > 0


def test_a_mean_takes_nothing_from_the_prefix_cache_and_a_last_token_does(tiny_model: TinyModel) -> None:
    [prompt] = prompts_of([40])
    cached = {}
    for kind in ("mean", "last"):
        engine = engine_of(tiny_model, kind)
        [first] = embed(engine, [prompt])
        again = EngineRequest(id="again", prompt_ids=prompt, embed=EmbedParams())
        assert engine.add(again) is None
        output = run(engine)["again"]
        np.testing.assert_allclose(output.embedding, first, rtol=0, atol=1e-6)
        answer = EngineRequest(id="answer", prompt_ids=prompt, params=SamplingParams(max_tokens=1))
        assert engine.add(answer) is None
        cached[kind] = (output.cached_tokens, run(engine)["answer"].cached_tokens)
    assert cached == {"mean": (0, 0), "last": (32, 32)}


def test_no_memory_is_kept_free_for_an_answer_that_will_not_come(tiny_model: TinyModel) -> None:
    engine = engine_of(tiny_model, "mean", num_kv_blocks=13, max_batch_tokens=200, watermark=0)
    for i, prompt in enumerate(prompts_of([70, 70])):  # five blocks each
        assert engine.add(EngineRequest(id=str(i), prompt_ids=prompt, embed=EmbedParams())) is None
    assert [output.id for output in engine.step()] == ["0", "1"]


def test_answers_beside_vectors_are_those_without_them(tiny_model: TinyModel) -> None:
    prompts = prompts_of([9, 17])
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    answers = []
    for beside in ((), prompts_of(LENGTHS)):
        engine = engine_of(tiny_model, "mean")
        for i, prompt in enumerate(prompts):
            assert engine.add(EngineRequest(id=f"a{i}", prompt_ids=prompt, params=params)) is None
        for i, prompt in enumerate(beside):
            assert engine.add(EngineRequest(id=f"e{i}", prompt_ids=prompt, embed=EmbedParams())) is None
        tokens: dict[str, list[int]] = {"a0": [], "a1": []}
        while engine.has_work:
            for output in engine.step():
                tokens.setdefault(output.id, []).extend(output.token_ids)
        answers.append([tokens["a0"], tokens["a1"]])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (EngineRequest(id="r", prompt_ids=[2], embed=EmbedParams(dimensions=0)), "dimensions"),
        (EngineRequest(id="r", prompt_ids=[2], embed=EmbedParams(dimensions=65)), "dimensions"),
        (EngineRequest(id="r", prompt_ids=[2], embed=EmbedParams(others=[[3]])), "input"),
        (EngineRequest(id="r", prompt_ids=[2], output_ids=[3], embed=EmbedParams()), "n"),
        (EngineRequest(id="r", prompt_ids=[], embed=EmbedParams()), "prompt_ids"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    tiny_model: TinyModel, request_: EngineRequest, param: str
) -> None:
    error = engine_of(tiny_model, "mean").add(request_)
    assert error is not None
    assert error.param == param


def test_several_texts_of_one_request_have_their_vectors_by_their_place(tiny_model: TinyModel) -> None:
    prompts = prompts_of([40, 1, 9])
    alone = embed(engine_of(tiny_model, "last"), prompts)
    engine = SeveralTexts(engine_of(tiny_model, "last"))
    first, *others = prompts
    assert engine.add(EngineRequest(id="r", prompt_ids=first, embed=EmbedParams(others=others))) is None
    again = engine.add(EngineRequest(id="r", prompt_ids=first, embed=EmbedParams()))
    assert again is not None
    assert again.param == "id"
    vectors = {}
    while engine.has_work:
        for output in engine.step():
            assert (output.id, output.finish_reason) == ("r", "stop")
            vectors[output.index] = output.embedding
    for index, vector in enumerate(alone):
        np.testing.assert_allclose(vectors[index], vector, rtol=0, atol=1e-6)


def test_of_several_texts_all_are_taken_or_none(tiny_model: TinyModel) -> None:
    inner = engine_of(tiny_model, "last")
    engine = SeveralTexts(inner)
    long = EmbedParams(others=[[4], [5] * 600, [6]])
    error = engine.add(EngineRequest(id="r", prompt_ids=[3], embed=long))
    assert error is not None
    assert (error.code, error.param) == ("context_length_exceeded", "input[2]")
    while engine.has_work:
        assert engine.step() == []
    assert engine.add(EngineRequest(id="r", prompt_ids=[3], embed=EmbedParams(others=[[4]]))) is None
    engine.abort("r")
    assert [(one.index, one.finish_reason) for one in engine.step()] == [(0, "abort"), (1, "abort")]
    many = EmbedParams(others=[[4]] * (1 << 13))
    error = engine.add(EngineRequest(id="r", prompt_ids=[3], embed=many))
    assert error is not None
    assert "more than the 262144 numbers" in error.message
    assert not engine.has_work
