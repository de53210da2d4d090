"""What an engine holds and has done, at one moment."""

from __future__ import annotations

import msgspec

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.scheduler import Scheduler


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """`used_blocks` and `free_blocks` are of the KV memory, cached content that nobody uses being free;
    `host_blocks` are swapped out. Since the start: of `query_tokens` that came the prefix cache had
    `hit_tokens`, and it lost `cache_evictions` blocks; of `preemptions`, `swaps_out` went to the host, and
    `swaps_in` came back; memory ran out, and the step budget shrank, `budget_shrinks` times.
    `step_budget`: tokens of a step now."""

    running: int
    waiting: int
    used_blocks: int
    free_blocks: int
    host_blocks: int
    query_tokens: int
    hit_tokens: int
    cache_evictions: int
    preemptions: int
    swaps_out: int
    swaps_in: int
    step_budget: int
    budget_shrinks: int


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
    )
