"""What the engine adds to the model's arithmetic: scheduling, memory, sampling, text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.models import LLAMA, model_folder
from benchmarks.engine_bench.our_parts import NoModel, TimedRunner, load_parts, our_config, step_engine
from benchmarks.engine_bench.settings import STEP_BUDGET, EngineBenchSettings
from benchmarks.engine_bench.targets import BOOKKEEPING, STEP_AT_256_MS
from benchmarks.engine_bench.telling import told_cores
from benchmarks.engine_bench.with_headrace import forced
from benchmarks.engine_bench.workload import Row as Asked
from benchmarks.shared.figures import median
from benchmarks.shared.report import Row
from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.garbage import collect_rarely
from headrace.gpu_engine.text.load import load_tokenizer
from headrace.gpu_engine.text.sim import SimTokenizer

NAME: Final = "bookkeeping"
MANY: Final = 256
PROSE: Final = "The quick brown fox jumps over the lazy dog, sleeps until the morning, and begins again. "


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of all steps; `launch` is a part of `step`, and `model` of `launch`."""

    step: float
    launch: float
    model: float


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    folder = str(model_folder(LLAMA, settings.cache))
    rows = settings.workload(LLAMA).rows
    times, others = apart(time_parts, folder, settings.threads, settings.slots, rows)
    share = 100 * (1 - times.model / times.step)
    scheduling = 100 * (1 - times.launch / times.step)
    note = f"{LLAMA.name}, {settings.slots} slots; {scheduling:.1f} % scheduler, memory and text; the rest"
    note += f" inputs and sampling; {told_cores(others)}"
    yield Row(NAME, "share of a step outside of the model", share, "%", BOOKKEEPING, note)
    steps = 20 if settings.quick else 400
    for model, what in (("", "a tokenizer of bytes"), (folder, f"{LLAMA.name}'s tokenizer")):
        step_s, others = apart(time_steps, model, steps)
        note = f"no model behind it, {what}; {told_cores(others)}"
        yield Row(NAME, f"a step of {MANY} running requests", 1000 * step_s, "ms", STEP_AT_256_MS, note)


def time_parts(model: str, threads: int, slots: int, rows: list[Asked]) -> Times:
    config = our_config(model, threads, max_batch_size=slots, max_batch_tokens=STEP_BUDGET)
    parts = load_parts(config, num_blocks=1 + slots * 40)
    runner = TimedRunner(parts.runner)
    engine = step_engine(config, runner, load_tokenizer(model))
    _add(engine, rows[:2])
    _drain(engine)  # what the first step pays is no share of a step
    runner.clock.seconds = parts.decoder.clock.seconds = 0.0
    _add(engine, rows)
    return Times(_drain(engine), runner.clock.seconds, parts.decoder.clock.seconds)


def time_steps(model: str, steps: int) -> float:
    """Seconds of a step, the median, in which 256 requests decode; in a process like an engine's own."""
    collect_rarely()
    config = our_config(model, 1, max_batch_size=MANY, max_batch_tokens=2 * MANY)
    tokenizer = load_tokenizer(model) if model else SimTokenizer()
    answer = tokenizer.encode_piece(PROSE)
    engine = step_engine(config, NoModel(num_blocks=1 + MANY * 64, answer=answer), tokenizer)
    _add(engine, [Asked([65 + n % 26] * 32, steps + 64) for n in range(MANY)])
    while engine.num_waiting:
        engine.step()
    return median([_time_step(engine) for _ in range(steps)])


def _add(engine: StepEngine, rows: list[Asked]) -> None:
    for number, row in enumerate(rows):
        request = EngineRequest(id=str(number), prompt_ids=row.prompt, params=forced(row.tokens))
        assert engine.add(request) is None


def _drain(engine: StepEngine) -> float:
    """Seconds of all steps until nothing is left."""
    seconds = 0.0
    while engine.has_work:
        seconds += _time_step(engine)
    return seconds


def _time_step(engine: StepEngine) -> float:
    began = time.perf_counter()
    engine.step()
    return time.perf_counter() - began
