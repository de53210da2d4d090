"""Tells the registry what is served here, and again when that changes."""

from __future__ import annotations

import asyncio
import functools
from typing import NoReturn

from headrace.broker.contract import ConsumerSession, Serves
from headrace.consumer.outage import Outage


class Announcer:
    """`tell` what there is now; `run` takes it to the registry, as soon as the broker is there."""

    def __init__(self, session: ConsumerSession, outage: Outage) -> None:
        self._session = session
        self._outage = outage
        self._untold: asyncio.Queue[Serves] = asyncio.Queue()

    def tell(self, serves: Serves) -> None:
        self._untold.put_nowait(serves)

    async def run(self) -> NoReturn:
        """Until it is cancelled. Raises a BrokerError that waiting does not cure."""
        told: Serves | None = None
        while True:
            serves = await self._untold.get()
            if serves != told:
                announce = functools.partial(self._session.announce, serves)
                await self._outage.insist(announce, "the announcement")
                told = serves
