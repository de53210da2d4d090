"""Taking a step: the plan is made and launched. What a step should do besides wraps what is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

from headrace.gpu_engine.memory.errors import is_out_of_memory
from headrace.gpu_engine.scheduling.scheduler import Scheduler
from headrace.gpu_engine.scheduling.step import Runner, StepPlan, StepResult

PAUSE_S: Final = 0.002
"""How long a step waits while a batching policy holds everybody back; additions and aborts are heard then."""


class OutOfMemory(Exception):
    """The launch of `plan` needed more memory than there is."""

    def __init__(self, plan: StepPlan) -> None:
        super().__init__(f"step {plan.step} ran out of memory")
        self.plan = plan


class Steps(Protocol):
    def take(self) -> tuple[StepPlan, StepResult]:
        """Plans and computes the next step; its result is still to be applied."""


class PlainSteps:
    """Schedule, launch. Raises OutOfMemory with the plan that could not be computed.

    `clock` (seconds) tells the scheduler how long a step takes.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._sleep = sleep

    def take(self) -> tuple[StepPlan, StepResult]:
        plan = self._scheduler.schedule()
        began = self._clock()
        result = self._launch(plan)
        if result is None:
            raise OutOfMemory(plan)  # only here, where nothing holds the tensors of the frames that failed
        self._scheduler.observe(plan, self._clock() - began)
        if not plan.chunks:
            self._sleep(PAUSE_S)
        return plan, result

    def _launch(self, plan: StepPlan) -> StepResult | None:
        try:
            return self._runner.launch(plan)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return None
