"""The other consumers, as the broker knows them: who serves which model, and how much waits for all of us.

What is asked here is kept for a moment, since many requests ask the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.broker.contract import ConsumerEntry, LaneDepth
from headrace.broker.errors import BrokerError
from headrace.broker.message import Lane
from headrace.consumer.window import fair_room

log = logging.getLogger(__name__)

FRESH_S = 1.0


class Registry(Protocol):
    """The part of a broker that is needed here."""

    async def consumers(self) -> list[ConsumerEntry]: ...

    async def depths(self, pool: str = ...) -> dict[Lane, LaneDepth]: ...


class Neighbours:
    """`pool`, `lanes`: what this consumer serves. `clock`: monotonic seconds."""

    def __init__(
        self, registry: Registry, pool: str, lanes: Sequence[Lane], clock: Callable[[], float]
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._lanes = tuple(lanes)
        self._clock = clock
        self._entries: list[ConsumerEntry] = []
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._backlog = 0.0
        self._peers = 1
        self.paused: frozenset[Lane] = frozenset()

    # ------------------------------------------------------------------------------------ who serves what

    async def pool_for(self, model: str) -> str | None:
        """Another pool that serves this model. Raises BrokerUnavailable."""
        pools = {entry.pool for entry in await self._consumers() if model in entry.serves.models}
        return min(pools - {self._pool}, default=None)

    async def peer_serves(self, model: str) -> bool:
        """Whether somebody in our own pool serves it, though we do not: a pool that is just being changed."""
        entries = await self._consumers()
        return any(entry.pool == self._pool and model in entry.serves.models for entry in entries)

    async def served(self) -> list[str]:
        """The preferred names of all models that can be had."""
        entries = await self._consumers()
        return sorted({entry.serves.models[0] for entry in entries if entry.serves.models})

    async def _consumers(self) -> list[ConsumerEntry]:
        async with self._reading:
            if self._read_at is None or self._clock() - self._read_at >= FRESH_S:
                self._entries, self._read_at = await self._registry.consumers(), self._clock()
        return self._entries

    # -------------------------------------------------------------------------------- how much waits for us

    @property
    def room(self) -> int:
        """How many deliveries this consumer may hold without running them, see `window`."""
        return fair_room(int(self._backlog), self._peers)

    def pulled(self, count: int, of: int) -> None:
        """We asked for `of` and got `count`; the others, we suppose, got as many. Fewer: nothing is left."""
        self._backlog = max(0.0, self._backlog - count * self._peers) if count >= of else 0.0

    async def look(self) -> None:
        """Asks how much waits. A broker that does not answer leaves no room: nothing is held back from
        peers."""
        try:
            depths = await self._registry.depths(self._pool)
            entries = await self._consumers()
        except BrokerError as error:
            log.debug("the backlog is not known: %s", error)
            self._backlog = 0.0
            return
        lanes = {lane: depths[lane] for lane in self._lanes if lane in depths}
        self.paused = frozenset(lane for lane, depth in lanes.items() if depth.paused)
        self._backlog = sum(one.waiting for lane, one in lanes.items() if lane not in self.paused)
        self._peers = max(1, sum(entry.pool == self._pool for entry in entries))
