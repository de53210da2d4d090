"""A real model whose blocks are shared, copied, sent to the host and back, and whose steps run out of memory:
the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec
import pytest
import torch

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.attention.contract import StepAttention
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.fan_out import FanOut
from headrace.gpu_engine.runner import load_runner
from headrace.gpu_engine.sampling.noise import derive_seed
from headrace.gpu_engine.scheduling.scheduler import PreemptHook
from tests.support.step_engine import make_engine, run_all
from tests.support.tiny_models import TinyModel, tiny_model

__all__ = ["tiny_model"]

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


Attention: TypeAlias = Literal["reference", "auto"]


def uncached(tiny_model: TinyModel, attention: Attention, **fields: Any) -> EngineConfig:
    """Without a prefix cache, so that nothing else brings blocks back or shares them."""
    return EngineConfig(
        model=str(tiny_model("llama")),
        attention=attention,
        block_size=8,
        num_kv_blocks=120,
        enable_prefix_caching=False,
        threads=1,
        **fields,
    )


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_swapped_requests_bring_the_tokens_that_they_bring_undisturbed(
    tiny_model: TinyModel, attention: Attention
) -> None:
    config = uncached(tiny_model, attention, max_batch_tokens=24, swap_space_bytes=1 << 22)
    random = Random(5)
    prompts = [[random.randrange(2, 300) for _ in range(random.randint(3, 40))] for _ in range(6)]

    def run(hook: PreemptHook | None) -> tuple[list[list[int]], int]:
        engine = make_engine(load_runner(config), config, 100, hook)
        answers, _ = run_all(engine, prompts, GREEDY)
        return answers, engine.stats.swaps_in

    def sometimes(step: int, running: Sequence[str]) -> Sequence[str]:
        return [name for name in running if random.random() < 0.4]

    undisturbed, swaps = run(None)
    assert swaps == 0
    swapped, swaps = run(sometimes)
    assert swaps > 10
    assert swapped == undisturbed


@pytest.mark.slow
def test_a_real_forward_that_runs_out_of_memory_is_taken_again_and_changes_no_token(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        model=str(tiny_model("llama")),
        num_kv_blocks=120,
        swap_space_bytes=1 << 22,
        backend="torch",
        threads=1,
    )
    random = Random(6)
    prompts = [[random.randrange(2, 300) for _ in range(random.randint(3, 60))] for _ in range(5)]
    runner = load_runner(config)
    undisturbed, _ = run_all(make_engine(runner, config, 100), prompts, GREEDY)

    model, failures = runner._model, []
    forward = model.forward

    def forward_in_little_memory(
        token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention
    ) -> torch.Tensor:
        hidden = forward(token_ids, positions, step)  # the KV of a step that fails has been written
        if len(token_ids) > 20 or (len(token_ids) > 1 and random.random() < 0.2):
            failures.append(len(token_ids))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return hidden

    monkeypatch.setattr(model, "forward", forward_in_little_memory)
    engine = make_engine(runner, config, 100)
    tight, _ = run_all(engine, prompts, GREEDY)
    assert len(failures) > 5
    assert engine.stats.budget_shrinks == len(failures)
    assert tight == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_answers_that_share_a_prompt_are_those_that_are_made_alone(
    tiny_model: TinyModel, attention: Attention
) -> None:
    config = uncached(tiny_model, attention)
    runner = load_runner(config)
    prompt = [*range(2, 23)]  # ends inside of a block
    params = SamplingParams(seed=4, max_tokens=12, ignore_eos=True)
    seeds = [derive_seed(4, index) for index in range(3)]
    alone = [
        run_all(make_engine(runner, config, 100), [prompt], msgspec.structs.replace(params, seed=seed))[0][0]
        for seed in seeds
    ]
    engine = FanOut(make_engine(runner, config, 100))
    several = msgspec.structs.replace(params, n=3)
    assert engine.add(EngineRequest(id="r", prompt_ids=prompt, params=several)) is None
    answers: list[list[int]] = [[], [], []]
    cached = set()
    while engine.has_work:
        for output in engine.step():
            answers[output.index] += output.token_ids
            cached.add((output.index, output.cached_tokens))
    assert answers == alone
    assert cached == {(0, 0), (1, 20), (2, 20)}, "all of the prompt but one token is shared"
