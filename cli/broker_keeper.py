"""Keeps the embedded broker of a stack alive.

start ──► alive ──► died ──► pause ──► start again …      for ever: its data are on the disk
             ▲                            │ failed: said, and a longer pause
             └────────────────────────────┘

Only its first start may fail for good. Later on there are requests in it that somebody waits for, and what is
in its way (a full disk, a lack of memory, somebody who kills it) may go away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from headrace.broker.errors import BrokerError
from headrace.cli.processes import Patience

POLL_S = 0.1
PATIENCE = Patience(first_delay_s=0.1, longest_delay_s=5.0)


class EmbeddedBroker(Protocol):
    """A server that we start. `start` and `stop` block; started again it is where it was. One that is stopped
    while it starts fails to, soon."""

    @property
    def url(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class BrokerKeeper:
    """One embedded broker and its successors. `say(line)` gets what happens to them; it must not raise."""

    def __init__(
        self, embedded: EmbeddedBroker, say: Callable[[str], None], patience: Patience = PATIENCE
    ) -> None:
        self._embedded = embedded
        self._say = say
        self._patience = patience
        self._starting: asyncio.Future[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Starts it, and keeps it alive from then on, until `stop`. Raises BrokerError where it cannot be
        started at all."""
        await self._start()
        self._keeping = asyncio.create_task(self._keep(), name="broker keeper")

    async def stop(self) -> None:
        """Ends it in order, also one that is starting just now."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="broker stop")
        await asyncio.shield(self._stopping)

    async def _keep(self) -> None:
        deaths, began, why = 0, time.monotonic(), "died"
        while True:
            await asyncio.sleep(POLL_S)
            if self._embedded.alive:
                continue
            deaths = 1 if time.monotonic() - began > self._patience.healthy_s else deaths + 1
            self._say(f"{why}; starting it again")
            await asyncio.sleep(self._patience.delay_s(deaths))
            try:
                await self._start()
                why = "died"
            except (BrokerError, OSError) as error:
                why = str(error)
            began = time.monotonic()

    async def _start(self) -> None:
        self._starting = asyncio.ensure_future(asyncio.to_thread(self._embedded.start))
        await asyncio.shield(self._starting)

    async def _stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._starting is not None:
            while not self._starting.done():
                if self._embedded.alive:
                    await asyncio.to_thread(self._embedded.stop)
                await asyncio.sleep(POLL_S)
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.to_thread(self._embedded.stop)
