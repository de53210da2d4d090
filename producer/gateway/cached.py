"""A value that is asked for often, may be a little old, and costs a round trip."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """Loads when the value is older than `ttl_s` seconds; callers that come meanwhile wait for the same load.
    An error goes to all who wait for the load that met it, and the next caller tries anew: each of many that
    tried for himself would wait for the time limits of all before him. Who gives up leaves the load to the
    others."""

    def __init__(self, load: Callable[[], Awaitable[T]], ttl_s: float, clock: Callable[[], float]) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._clock = clock
        self._loading: asyncio.Task[T] | None = None
        self._value: tuple[float, T] | None = None

    async def get(self) -> T:
        if (fresh := self._fresh()) is not None:
            return fresh[1]
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load_anew(), name="headrace cached")
            self._loading.add_done_callback(_note_error)
        return await asyncio.shield(self._loading)

    async def _load_anew(self) -> T:
        asked_at = self._clock()
        value = await self._load()
        self._value = asked_at, value
        return value

    def _fresh(self) -> tuple[float, T] | None:
        if self._value is not None and self._clock() - self._value[0] < self._ttl_s:
            return self._value
        return None


def _note_error(loading: asyncio.Task[T]) -> None:
    """So that an error for which nobody waits any more is no error of the loop's."""
    if not loading.cancelled():
        loading.exception()
