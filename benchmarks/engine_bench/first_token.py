"""The first token of a request that finds the engine idle, beside a bare forward over the same prompt."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.models import LLAMA, model_folder
from benchmarks.engine_bench.our_parts import Parts, load_parts, our_config, step_engine
from benchmarks.engine_bench.ratios import Spread, ratio
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.targets import IDLE_TTFT
from benchmarks.engine_bench.telling import join, told_cores
from benchmarks.engine_bench.with_headrace import forced
from benchmarks.shared.figures import median
from benchmarks.shared.report import Row
from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.inputs import build_inputs
from headrace.gpu_engine.manager import RequestManager
from headrace.gpu_engine.scheduling.step import Chunk
from headrace.gpu_engine.text.load import load_tokenizer

NAME: Final = "first-token"
_BLOCKS: Final = 64


@dataclass(frozen=True, slots=True)
class Found:
    """`bare`: seconds, the median; the others are ratios to it."""

    bare: float
    steps: Spread
    llm: Spread


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    folder, prompt = str(model_folder(LLAMA, settings.cache)), settings.workload(LLAMA).single
    tries = 5 if settings.quick else 40
    found, others = apart(measure, folder, settings.threads, prompt, tries)
    bare = f"{LLAMA.name}, {len(prompt)} tokens; bare {1000 * found.bare:.1f} ms"
    for way, times in (("the engine's step", found.steps), ("LLM's thread", found.llm)):
        what = f"first token on an idle engine ÷ bare forward, through {way}"
        note = join(bare, times.as_note(), told_cores(others))
        yield Row(NAME, what, times.middle, "×", IDLE_TTFT, note)


def measure(model: str, threads: int, prompt: list[int], tries: int) -> Found:
    config = our_config(model, threads)
    parts, tokenizer = load_parts(config, _BLOCKS), load_tokenizer(model)
    engine = step_engine(config, parts.runner, tokenizer)
    ids = count()

    with RequestManager(engine, tokenizer) as manager:
        ways: list[Callable[[], object]] = [
            lambda: compute(parts, prompt, config.block_size),
            lambda: answer(engine, str(next(ids)), prompt),
            lambda: manager.generate_batch([prompt], forced(1)),
        ]
        for way in ways:
            way()
        times = [[_time(way) for way in ways] for _ in range(tries)]
    bare, steps, llm = zip(*times, strict=True)
    return Found(median(bare), ratio(bare, steps, less_is_better=True), ratio(bare, llm, less_is_better=True))


@torch.inference_mode()
def compute(parts: Parts, prompt: list[int], block_size: int) -> int:
    """What cannot be spared: the inputs, the model, its largest logit."""
    blocks = list(range(1, 1 + -(-len(prompt) // block_size)))
    inputs = build_inputs([Chunk("bare", prompt, 0, blocks, True, forced(1))], block_size)
    step = parts.attention.begin(inputs.batch)
    hidden = parts.decoder.forward(inputs.token_ids, inputs.batch.positions, step)
    return int(parts.decoder.logits(hidden[-1:]).argmax())


def answer(engine: StepEngine, name: str, prompt: list[int]) -> None:
    """The manager's thread sleeps meanwhile: it was given nothing."""
    assert engine.add(EngineRequest(id=name, prompt_ids=prompt, params=forced(1))) is None
    while engine.has_work:
        engine.step()


def _time(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began
