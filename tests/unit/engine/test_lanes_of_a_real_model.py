"""Beside a steady backlog in a real engine, a user waits as many steps as in an idle one, and one more."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.runner import load_runner
from tests.support.step_engine import make_engine
from tests.support.tiny_models import TinyModel, tiny_model

__all__ = ["tiny_model"]

SIZE, BUDGET, BLOCK, TOKENS = 6, 48, 8, 40


def request(name: str, prompt: Sequence[int], tokens: int, priority: int) -> EngineRequest:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return EngineRequest(id=name, prompt_ids=list(prompt), params=params, priority=priority)


class Watched:
    """An engine whose answers are kept."""

    def __init__(self, engine: StepEngine) -> None:
        self.engine = engine
        self.answers: dict[str, list[int]] = {}

    def add(self, name: str, prompt: Sequence[int], tokens: int, priority: int) -> None:
        assert self.engine.add(request(name, prompt, tokens, priority)) is None
        self.answers[name] = []

    def step(self) -> None:
        for output in self.engine.step():
            assert output.error is None
            self.answers[output.id] += output.token_ids
        self.engine.check_invariants()

    def first_token(self, name: str) -> int:
        """Steps until it has one."""
        steps = 0
        while not self.answers[name]:
            self.step()
            steps += 1
        return steps

    def finish(self) -> None:
        while self.engine.has_work:
            self.step()


@pytest.mark.slow
@pytest.mark.parametrize("num_blocks", [50, 200], ids=["memory is short", "slots are short"])
def test_users_beside_a_backlog_wait_as_if_alone_and_the_backlog_loses_no_token(
    tiny_model: TinyModel, num_blocks: int
) -> None:
    config = EngineConfig(
        model=str(tiny_model("llama")),
        max_batch_size=SIZE,
        max_batch_tokens=BUDGET,
        block_size=BLOCK,
        num_kv_blocks=200,
        threads=1,
    )
    runner = load_runner(config)
    random = Random(7)
    prompts = {
        f"b{number}": [random.randrange(runner.vocab_size) for _ in range(random.randint(8, 60))]
        for number in range(2 * SIZE)
    }
    alone = Watched(make_engine(load_runner(config), config, num_blocks))  # with memory of its own
    beside = Watched(make_engine(runner, config, num_blocks))
    for name, prompt in prompts.items():
        beside.add(name, prompt, TOKENS, priority=2)
    for _ in range(10):
        beside.step()
    for number in range(8):
        prompt = [random.randrange(runner.vocab_size) for _ in range(random.randint(1, 120))]
        for watched in (alone, beside):
            watched.add(f"user{number}", prompt, 4, priority=0)
        idle = alone.first_token(f"user{number}")
        assert beside.first_token(f"user{number}") <= 1.5 * idle + 1
        alone.finish()
        for _ in range(random.randint(4, 12)):
            beside.step()
    assert beside.engine.preemptions > 0
    beside.finish()
    for name, prompt in list(prompts.items())[:3]:
        alone.add(name, prompt, TOKENS, priority=2)
        alone.finish()
        assert beside.answers[name] == alone.answers[name]
