"""Stopping on request: SIGTERM or SIGINT drains, a second one hands everything back at once.

    running ──1st──► draining: no more pulls, requests finish ──2nd, or grace over──► releasing ──► closed

What is released keeps its tokens: they are written to the log first, and the next owner resumes from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Drain:
    """A stop in two stages. `grace_s`: how long the first may last before the second begins by itself."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._draining = asyncio.Event()
        self._releasing = asyncio.Event()

    @property
    def requested(self) -> bool:
        return self._draining.is_set()

    def request(self) -> None:
        """First call: drain. Second: release at once."""
        if self._draining.is_set():
            self._releasing.set()
        self._draining.set()

    async def wait_requested(self) -> None:
        await self._draining.wait()

    async def wait_over(self) -> None:
        """Returns when what still runs must be handed back."""
        await self._draining.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.grace_s):
                await self._releasing.wait()


@contextlib.contextmanager
def drain_on_signals(drain: Drain) -> Iterator[None]:
    """While open, SIGTERM and SIGINT ask for the drain. Only in the main thread's event loop."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, drain.request)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
