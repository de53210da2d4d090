"""How much of the KV memory that requests hold is not used: no block is taken before it is needed, so only
the last one of each request has free slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from benchmarks.engine_bench.our_parts import NoModel, our_config, step_engine
from benchmarks.engine_bench.settings import STEP_BUDGET, EngineBenchSettings
from benchmarks.engine_bench.targets import KV_WASTE
from benchmarks.engine_bench.with_headrace import forced
from benchmarks.engine_bench.workload import Row as Asked
from benchmarks.engine_bench.workload import draw_workload
from benchmarks.shared.report import Row
from headrace.gpu_engine.api import EngineRequest
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from headrace.gpu_engine.text.sim import SimTokenizer

NAME: Final = "kv-waste"


@dataclass(slots=True)
class SlotCounter:
    """A runner that adds up, over all steps, the slots that requests hold and those that hold a token."""

    runner: NoModel
    engine: StepEngine | None = None
    allocated: int = 0
    used: int = 0
    _lengths: dict[str, int] = field(default_factory=dict)

    @property
    def num_blocks(self) -> int:
        return self.runner.num_blocks

    @property
    def block_size(self) -> int:
        return self.runner.block_size

    @property
    def num_host_slots(self) -> int:
        return 0

    @property
    def block_copy_s(self) -> float:
        return 0.0

    def launch(self, plan: StepPlan) -> StepResult:
        assert self.engine is not None
        self._lengths |= {chunk.request_id: chunk.start + len(chunk.token_ids) for chunk in plan.chunks}
        self.allocated += self.engine.stats.used_blocks * self.block_size
        self.used += sum(self._lengths.values())
        return self.runner.launch(plan)

    def forget(self, request_id: str) -> None:
        """Its blocks are free again."""
        self._lengths.pop(request_id, None)


def run(settings: EngineBenchSettings) -> Iterator[Row]:
    """No model is needed: what is allocated depends on lengths alone. Since that is quick, and lengths are
    what matters, there is no shorter form of it."""
    share = 100 * wasted_share(draw_workload().rows, settings.slots)
    note = f"the race's workload, {settings.slots} slots, blocks of 16 tokens; mean over all steps"
    yield Row(NAME, "allocated but unused slots", share, "%", KV_WASTE, note)


def wasted_share(rows: list[Asked], slots: int) -> float:
    """Of all slots allocated in all steps, 0 to 1."""
    config = our_config("", 1, max_batch_size=slots, max_batch_tokens=STEP_BUDGET)
    counter = SlotCounter(NoModel(num_blocks=1 + slots * 40))
    engine = counter.engine = step_engine(config, counter, SimTokenizer())
    for number, row in enumerate(rows):
        request = EngineRequest(id=str(number), prompt_ids=row.prompt, params=forced(row.tokens))
        assert engine.add(request) is None
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason is not None:
                counter.forget(output.id)
    return 1 - counter.used / counter.allocated
