"""What a long prompt does to those that are answered already."""

from __future__ import annotations

import time

from benchmarks.engine_bench.our_parts import load_parts, our_config, step_engine
from benchmarks.engine_bench.with_headrace import forced
from benchmarks.shared.figures import median
from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.text.sim import SimTokenizer

STREAMS = 4
PROMPT = 1500
BUDGET = 128
_TOKENS = 40


def longest_gap(model: str, threads: int, *, chunked: bool, quick: bool) -> float:
    """Seconds between two tokens of streams that run while a prompt of `PROMPT` tokens comes: the longest
    gap, the median of some tries."""
    config = our_config(model, threads, max_batch_tokens=BUDGET, enable_chunked_prefill=chunked)
    parts = load_parts(config, num_blocks=1 + (PROMPT + 1000) // config.block_size)
    engine = step_engine(config, parts.runner, SimTokenizer())
    return median([_intrude(engine, turn) for turn in range(1 if quick else 5)])


def _intrude(engine: StepEngine, turn: int) -> float:
    for stream in range(STREAMS):
        _add(engine, f"stream-{turn}-{stream}", 16, _TOKENS)
    for _ in range(5):
        engine.step()
    _add(engine, f"long-{turn}", PROMPT, 1)
    longest = 0.0
    while engine.has_work:
        began = time.perf_counter()
        engine.step()  # brings each stream a token
        longest = max(longest, time.perf_counter() - began)
    return longest


def _add(engine: StepEngine, name: str, prompt: int, tokens: int) -> None:
    ids = [10 + place % 1000 for place in range(prompt)]
    assert engine.add(EngineRequest(id=name, prompt_ids=ids, params=forced(tokens))) is None
