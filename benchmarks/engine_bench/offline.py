"""The same requests through `LLM.generate_batch` and through the bare step loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from benchmarks.engine_bench.contestants import ours
from benchmarks.engine_bench.entering import race_between
from benchmarks.engine_bench.laps import BATCHED, batch_only
from benchmarks.engine_bench.models import LLAMA
from benchmarks.engine_bench.ratios import column, ratio
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.targets import LLM_SHARE
from benchmarks.engine_bench.telling import disturbance, join
from benchmarks.shared.report import Row, missing

NAME: Final = "offline"
_STEPS: Final = ours("step loop", "--weights", "int16")
_LLM: Final = ours("generate_batch", "--weights", "int16", "--llm")


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    what, workload = "LLM.generate_batch ÷ the bare step loop", settings.workload(LLAMA)
    with race_between(settings, [_STEPS, _LLM], LLAMA, workload, batch_only) as race:
        race.run(settings.rounds)
    for name, reason in race.fallen.items():
        yield missing(NAME, what, f"{name}: {reason}")
        return
    llm, steps = race.turns[_LLM.name], race.turns[_STEPS.name]
    found = ratio(column(llm, BATCHED), column(steps, BATCHED))
    note = join(f"{LLAMA.name}, the race's workload", found.as_note(100), disturbance([*llm, *steps]))
    yield Row(NAME, what, 100 * found.middle, "%", LLM_SHARE, note)
