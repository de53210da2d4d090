"""Who of the waiting may join now, such that preemption stays rare.

A request joins if its whole known text fits, a watermark of blocks stays free, and the expected peak of
all requests that run then fits too (`forecast`).

Work of a higher lane may join in the place of what runs in lower ones, although nothing is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.forecast import Forecast, OutputEstimate
from headrace.gpu_engine.scheduling.preemption import choose_victims, is_spared
from headrace.gpu_engine.scheduling.request import Request


class Admission:
    """The test whether a waiting request may join those that run.

    No more than `max_batch_size` run, and no more than the step's `budget` has tokens, so that each that
    decodes advances in every step. `watermark`: share of blocks that stay free, unless nothing runs: a
    request alone always joins. `looks_ahead` off: the expected peak counts only for requests that have lost
    their place too often.
    """

    def __init__(
        self,
        memory: KVMemory,
        max_batch_size: int,
        budget: StepBudget,
        watermark: float,
        estimate: OutputEstimate,
        *,
        looks_ahead: bool = True,
    ) -> None:
        self._memory = memory
        self._max_batch_size = max_batch_size
        self._budget = budget
        self._reserve = int(watermark * memory.capacity)
        self.estimate = estimate
        self._looks_ahead = looks_ahead
        self._forecast = Forecast(memory, estimate)

    @property
    def max_running(self) -> int:
        return min(self._max_batch_size, self._budget.tokens)

    def look(self, running: Sequence[Request]) -> None:
        """A step begins, or somebody has lost his place: what is asked next is about these."""
        self._forecast.look(running)

    def joined(self, request: Request) -> None:
        """It is one of them now."""
        self._forecast.joined(request)

    def has_slot(self, request: Request, running: Sequence[Request], *, in_place: bool) -> bool:
        """A cheap first test: there is a slot, or somebody who may have to give way."""
        if not in_place and len(running) < self.max_running:
            return True
        return any(victim.turn.yields_to(request.turn) for victim in running)

    def make_room(
        self, request: Request, prefix: Sequence[int], running: Sequence[Request], *, in_place: bool
    ) -> list[Request] | None:
        """Whom to preempt so that `request` may join, mostly nobody; None: it may not join now.

        `prefix`: the blocks that the cache has for it. Only lower lanes give way, and only if that helps.
        `in_place`: what is free belongs to another first, so somebody must give way; that bounds how often
        this happens.
        """
        if not running:
            return []
        needed = self._memory.free_blocks_needed(prefix, request.num_tokens)
        looks_ahead = self._looks_ahead or is_spared(request)
        if looks_ahead and self._forecast.peak_with(request, needed) > self._memory.capacity:
            return None
        free_slots = self.max_running - len(running)
        free_blocks = self._memory.num_free - self._reserve
        return choose_victims(
            request,
            prefix,
            running,
            self._memory,
            missing_slots=1 if in_place else 1 - free_slots,
            missing_blocks=needed - free_blocks,
        )
