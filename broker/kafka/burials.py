"""Records that are no messages, on their way to the dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from headrace.broker.errors import BrokerError, BrokerRefused
from headrace.broker.kafka.codec import Record, dead_letter_record, letter_head
from headrace.broker.kafka.items import Item
from headrace.broker.kafka.settle import Settler
from headrace.broker.kafka.tenure import Bad, Tenure
from headrace.broker.names import Names

logger = logging.getLogger(__name__)


class Burials:
    def __init__(self, settler: Settler, names: Names) -> None:
        self._settler, self._names = settler, names
        self._burying: set[asyncio.Future[list[None]]] = set()

    async def bury(self, found: Sequence[tuple[Tenure, Bad]]) -> None:
        """Moves what cannot be understood to the dead letters, bytes untouched; its neighbours go on."""
        burying = asyncio.ensure_future(asyncio.gather(*(self._bury(tenure, bad) for tenure, bad in found)))
        self._burying.add(burying)  # they were taken: it goes on where its caller is cancelled
        burying.add_done_callback(self._burying.discard)
        burying.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._settler.patiently(burying)

    async def _bury(self, tenure: Tenure, bad: Bad) -> None:
        """Foreign clients may write more than we can send on: of that, only the letter's head is kept. It has
        no caller that would come back to it, so it is waited for, however long that takes."""
        letter = self._letter_of(tenure, bad)
        try:
            await self._settler.put(Item(tenure, bad.record.offset, [letter]))
        except BrokerRefused:
            raise
        except BrokerError as error:
            logger.error("the bytes of %s are lost: %s", tenure.position(bad.record.offset), error)
            await self._settler.put(Item(tenure, bad.record.offset, [letter_head(letter)]))

    def _letter_of(self, tenure: Tenure, bad: Bad) -> Record:
        origin = tenure.position(bad.record.offset)
        logger.warning("dead-lettered %s: %s", origin, bad.reason)
        return dead_letter_record(bad.record, origin, bad.reason, self._names)
