"""To which pool a request goes: by the model it names, and by what the consumers say they serve.

| the request names …          | and …                     | then                                     |
|------------------------------|---------------------------|------------------------------------------|
| no model                     |                           | the gateway's own pool                   |
| a model of its own pool      |                           | its own pool                             |
| a model of other pools       |                           | the first of them that serves its lane   |
| a model that nobody serves   | no consumer is registered | its own pool: consumers may come         |
| a model that nobody serves   | some are                  | refused, with the list of what is served |

A model counts as served for a minute after its last consumer was seen, so that a restart refuses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from headrace.broker.contract import Broker, ConsumerEntry
from headrace.broker.message import Lane
from headrace.producer.gateway import status
from headrace.producer.gateway.cached import Cached
from headrace.producer.gateway.status import Refusal

TTL_S = 1.0
MEMORY_S = 60.0


class Routes:
    """`pool` is the gateway's own. Raises BrokerError where the registry cannot be read."""

    def __init__(self, broker: Broker, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._registry = Cached(broker.consumers, TTL_S, clock)
        self._seen: dict[tuple[str, str, Lane], float] = {}  # model, pool, lane: when

    async def pool_for(self, model: str, lane: Lane) -> str | Refusal:
        if not model:
            return self._pool
        registered = await self._registry.get()
        self._remember(registered)
        pools = {pool for name, pool, _ in self._seen if name == model}
        with_lane = {pool for name, pool, its in self._seen if name == model and its is lane}
        if pools and self._pool not in pools:
            return min(with_lane or pools)
        if pools or not registered:
            return self._pool
        return status.not_served(model, sorted({name for name, _, _ in self._seen}))

    def _remember(self, registered: Iterable[ConsumerEntry]) -> None:
        now = self._clock()
        for entry in registered:
            for model in entry.serves.models:
                self._seen.update(((model, entry.pool, lane), now) for lane in entry.lanes)
        self._seen = {key: at for key, at in self._seen.items() if now - at < MEMORY_S}
