"""What a session says of itself in the registry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace

from headrace.broker.contract import Serves
from headrace.broker.kafka.control import Control, Report
from headrace.broker.message import Lane


class Reports:
    """`blank`: what stays the same. `held`: how many deliveries it holds now, by lane. `beat_ms`: when it
    last showed life."""

    def __init__(self, control: Control, held: Callable[[], Mapping[Lane, int]], blank: Report) -> None:
        self._control, self._held, self._report = control, held, blank
        self._under_way: asyncio.Task[None] | None = None
        self.beat_ms = 0

    def made(self) -> Report:
        """As of now, but for the time of the last sign of life."""
        return replace(self._report, held=self._held(), at_ms=self.beat_ms)

    def send(self) -> None:
        """Raises BrokerUnavailable when the last one did not arrive. It does not wait for that of now: the
        next sign of life must not come late because the broker is slow."""
        last = self._under_way
        if last is None or last.done():
            self._under_way = asyncio.create_task(self._control.report(self.made()))
            if last is not None:
                last.result()

    async def announce(self, serves: Serves) -> None:
        self._report = replace(self._report, serves=serves)
        await self._control.report(self.made())

    async def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)
