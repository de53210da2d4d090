"""How deep each lane is, and whether its policy lets one more request in.

The broker is asked at most once a second; what this gateway published meanwhile is counted on top, so one
gateway never exceeds a lane's size. Several of them may, by what the others publish within that second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from headrace.broker.contract import Broker
from headrace.broker.message import Lane
from headrace.broker.queue_policy import QueuePolicies
from headrace.producer.gateway import status
from headrace.producer.gateway.cached import Cached
from headrace.producer.gateway.drain_rate import DrainRate
from headrace.producer.gateway.status import Refusal

TTL_S = 1.0


class LaneDepths:
    """Keeps the sizes of `policies` in every pool."""

    def __init__(
        self, broker: Broker, policies: QueuePolicies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._policies = policies
        self._clock = clock
        self._pools: dict[str, _Pool] = {}

    async def enter(self, lane: Lane, pool: str) -> Refusal | None:
        """Counts one more request of the lane, or says why it may not wait there. One that entered is to be
        reported by `published`. Raises BrokerError where nobody can tell the depth."""
        size = self._size(lane)
        if size is None:
            return None
        known = self._pools.get(pool)
        if known is None:
            known = self._pools[pool] = _Pool(self._broker, pool, self._clock)
        depth = await known.depth(lane)
        if depth >= size:
            return _full(lane, depth, size, known.rates[lane].delay_ms(depth - size + 1))
        known.entered[lane] += 1
        return None

    def published(self, lane: Lane, pool: str) -> None:
        """One that entered is on the queue now. (Or it failed: then it counts in vain for a second.)"""
        if self._size(lane) is not None:
            self._pools[pool].entered[lane] -= 1
            self._pools[pool].added[lane] += 1

    def _size(self, lane: Lane) -> int | None:
        policy = self._policies.get(lane)
        return None if policy is None else policy.size


class _Pool:
    """Depths in one pool. `entered`: requests whose publish is under way, so that the broker may not count
    them yet; `added`: those that have been published since it was last asked, or while it answered."""

    def __init__(self, broker: Broker, pool: str, clock: Callable[[], float]) -> None:
        self._broker = broker
        self._pool = pool
        self._waiting = Cached(self._ask, TTL_S, clock)
        self._before: dict[Lane, int] = {}
        self.entered: Counter[Lane] = Counter()
        self.added: Counter[Lane] = Counter()
        self.rates = {lane: DrainRate(clock) for lane in Lane}

    async def depth(self, lane: Lane) -> int:
        waiting = await self._waiting.get()
        return waiting.get(lane, 0) + self.entered[lane] + self.added[lane]

    async def _ask(self) -> dict[Lane, int]:
        counted = self.added.copy()
        depths = await self._broker.depths(self._pool)
        waiting = {lane: depth.waiting for lane, depth in depths.items()}
        for lane, now in waiting.items():
            if lane in self._before:
                self.rates[lane].observe(max(0, self._before[lane] + counted[lane] - now))
        self.added -= counted
        self._before = waiting
        return waiting


def _full(lane: Lane, depth: int, size: int, retry_after_ms: int) -> Refusal:
    message = f"{depth} requests wait in the lane {lane}, which holds up to {size}; try a little later"
    return status.exhausted(message, "LANE_FULL", retry_after_ms, {"lane": lane.value, "limit": str(size)})
