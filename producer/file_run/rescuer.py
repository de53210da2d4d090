"""Asks again for what the broker has answered, but whose result line is nowhere.

A request that is published again is a duplicate, and normally its answer is under way, or stands in the
reply topic already. But a line can also be missing for good: its result was written to OUT, dropped from
the topic, and then deleted from OUT by somebody (who wants a failed line tried again, say). Then its log
has ended, no line comes, and the request is published anew under the next attempt's id.
"""

from __future__ import annotations

import asyncio

from headrace.broker.contract import Broker
from headrace.broker.fold import Fold
from headrace.broker.message import RequestRef
from headrace.producer.file_run.collector import Collector
from headrace.producer.file_run.identity import request_id
from headrace.producer.file_run.ledger import Ledger
from headrace.producer.file_run.options import FileRunOptions
from headrace.producer.file_run.publisher import Attempt, Publisher
from headrace.producer.file_run.retry import persist


class Rescuer:
    """Looks at the doubtful requests of a publisher, batch by batch."""

    def __init__(
        self,
        broker: Broker,
        options: FileRunOptions,
        ledger: Ledger,
        publisher: Publisher,
        collector: Collector,
    ) -> None:
        self._broker = broker
        self._options = options
        self._ledger = ledger
        self._publisher = publisher
        self._collector = collector

    async def run(self) -> None:
        """Rescues for ever."""
        while True:
            doubtful = [await self._publisher.doubtful.get()]
            while not self._publisher.doubtful.empty():
                doubtful.append(self._publisher.doubtful.get_nowait())
            # One after the other: all of them must come to an end, so none holds up another for long.
            silent = [attempt for attempt in doubtful if not await self._is_answered(attempt)]
            if silent:
                # Terminal record and result line are written together: it is here soon, or never.
                await self._collector.quiet(self._options.quiet_s)
                again = [each.next() for each in silent if not self._ledger.is_answered(each.line.number)]
                await self._publisher.publish(again)

    async def _is_answered(self, attempt: Attempt) -> bool:
        """Waits for the answer, or for the end of a log that brought none."""
        if self._ledger.is_answered(attempt.line.number):
            return True
        answered = asyncio.ensure_future(self._ledger.answered(attempt.line.number))
        ended = asyncio.ensure_future(self._ended(attempt))
        try:
            await asyncio.wait({answered, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():
                ended.result()
        finally:
            answered.cancel()
            ended.cancel()
        return self._ledger.is_answered(attempt.line.number)

    async def _ended(self, attempt: Attempt) -> None:
        """Returns once the log of a request has ended, or where there is none."""
        ref = RequestRef(request_id(self._ledger.run, attempt.line.number, attempt.number))
        await persist(lambda: self._read_to_end(ref), self._options.policy)

    async def _read_to_end(self, ref: RequestRef) -> None:
        if not await self._broker.known(ref):
            return
        state = Fold()
        async for logged in self._broker.watch(ref):
            state.read(logged.event)
            if state.ended:
                return
