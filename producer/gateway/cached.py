"""A value that is asked for often, may be a little old, and costs a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """Loads when the value is older than `ttl_s` seconds; callers that come meanwhile wait for the same load.
    An error goes to the caller that met it, and the next one tries anew."""

    def __init__(self, load: Callable[[], Awaitable[T]], ttl_s: float, clock: Callable[[], float]) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._value: tuple[float, T] | None = None

    async def get(self) -> T:
        if (fresh := self._fresh()) is not None:
            return fresh[1]
        async with self._lock:
            if (fresh := self._fresh()) is None:
                asked_at = self._clock()
                fresh = self._value = asked_at, await self._load()
            return fresh[1]

    def _fresh(self) -> tuple[float, T] | None:
        if self._value is not None and self._clock() - self._value[0] < self._ttl_s:
            return self._value
        return None
