"""Reads what an engine holds and has done."""

from __future__ import annotations

from headrace.gpu_engine.api import EngineStats
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.scheduler import Scheduler


def read_stats(scheduler: Scheduler, memory: KVMemory) -> EngineStats:
    return EngineStats(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        used_blocks=memory.num_used,
        free_blocks=memory.num_free,
        host_blocks=memory.host_slots_used,
        query_tokens=memory.query_tokens,
        hit_tokens=memory.hit_tokens,
        cache_evictions=memory.cache_evictions,
        preemptions=scheduler.preemptions,
        swaps_out=scheduler.swap.swaps_out,
        swaps_in=scheduler.swap.swaps_in,
        step_budget=scheduler.budget.tokens,
        budget_shrinks=scheduler.budget.shrinks,
        draft_tokens=scheduler.drafts.proposed,
        accepted_tokens=scheduler.drafts.accepted,
    )
