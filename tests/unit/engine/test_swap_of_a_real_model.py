"""A real model's blocks go to the host and back, and its tokens stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

import pytest

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.runner import load_runner
from headrace.gpu_engine.scheduling.scheduler import PreemptHook
from tests.support.step_engine import make_engine, run_all
from tests.support.tiny_models import TinyModel, tiny_model

__all__ = ["tiny_model"]

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["reference", "auto"])
def test_swapped_requests_bring_the_tokens_that_they_bring_undisturbed(
    tiny_model: TinyModel, attention: Literal["reference", "auto"]
) -> None:
    config = EngineConfig(
        model=str(tiny_model("llama")),
        attention=attention,
        block_size=8,
        num_kv_blocks=120,
        max_batch_tokens=24,
        enable_prefix_caching=False,
        swap_space_bytes=1 << 22,
        threads=1,
    )
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
