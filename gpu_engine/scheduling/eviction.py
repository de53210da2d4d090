"""Running requests that lose their place before a step: for want of blocks or budget, or for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.admission import Admission
from headrace.gpu_engine.scheduling.preemption import eagerness_to_yield
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.roster import Roster

PreemptHook: TypeAlias = Callable[[int, Sequence[str]], Iterable[str]]
"""For tests: (step, ids that run) → ids to preempt at its start. One that has not sampled a token since it
joined is left alone, so that every hook leaves progress."""


class Eviction:
    """The request that would be preempted last always keeps its place, so every step gets somewhere."""

    def __init__(
        self, roster: Roster, memory: KVMemory, admission: Admission, hook: PreemptHook | None = None
    ) -> None:
        self._roster = roster
        self._memory = memory
        self._admission = admission
        self._hook = hook

    def by_hook(self, step: int) -> None:
        if self._hook is None:
            return
        running = self._roster.running
        chosen = set(self._hook(step, [request.id for request in running]))
        for request in [one for one in running if one.id in chosen and one.turn.stay_tokens]:
            self._roster.preempt(request)

    def to_fit_budget(self) -> bool:
        """No more may run than a step has tokens; whether that took a preemption. It only does after the
        budget has shrunk for want of memory."""
        surplus = len(self._roster.running) - self._admission.max_running
        for _ in range(surplus):
            self._evict_one()
        return surplus > 0

    def for_decodes(self) -> bool:
        """Finds a block for every decode that begins one; whether that took a preemption. A request alone has
        enough, since it was accepted only if it fits."""
        size = self._memory.block_size
        running = self._roster.running
        short = [one for one in running if len(one.token_ids) > len(one.block_ids) * size]
        preempted = False
        while len(short) > self._memory.num_free:
            assert len(running) > 1, "a request alone does not fit, although it was accepted"
            victim = self._evict_one()
            self._admission.estimate.raise_after_preemption()
            short = [request for request in short if request is not victim]
            preempted = True
        for request in short:
            request.extend(self._memory.allocate(1))
        return preempted

    def _evict_one(self) -> Request:
        victim = max(self._roster.running, key=eagerness_to_yield)
        self._roster.preempt(victim, evicted=True)
        return victim
