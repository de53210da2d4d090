"""Time as the in-memory log sees it: the system's, or one that a test moves by hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Unix milliseconds, and a way to wait for one."""

    def now_ms(self) -> int: ...

    async def sleep_until(self, at_ms: int) -> None: ...


class SystemClock:
    """The clock on the wall, for tests with real processes and for trying things out."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until(self, at_ms: int) -> None:
        await asyncio.sleep(max(0, at_ms - self.now_ms()) / 1000)


class ManualClock:
    """Stands still until `advance` moves it: a lease lapses when a test says so, not on a slow machine."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Moves on and wakes who waited for a time that has now come."""
        assert ms >= 0, ms
        self._now_ms += ms
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            _, _, waiter = heapq.heappop(self._sleepers)
            if not waiter.done():
                waiter.set_result(None)

    async def sleep_until(self, at_ms: int) -> None:
        if at_ms <= self._now_ms:
            return
        waiter = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (at_ms, next(self._order), waiter))
        await waiter
