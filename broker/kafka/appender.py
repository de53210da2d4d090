"""Appends events, outside transactions, and keeps what the owner knows of the logs in step with them.

    append(…) ──► one pipelined batch ──► all acknowledged ──► PartitionLogs

A statement (see `epochs`) holds the fold of a whole log, so nothing of that log may be on its way meanwhile:
it waits for a moment without appends, and those that come wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.errors import BrokerError
from headrace.broker.events import Event, Fence, Handed
from headrace.broker.kafka.bridge import fail, resolve
from headrace.broker.kafka.clients import Acknowledged
from headrace.broker.kafka.clock import steady_ms
from headrace.broker.kafka.codec import Record, size_of
from headrace.broker.kafka.departures import Departure
from headrace.broker.kafka.epochs import Beside
from headrace.broker.kafka.event_records import Closing, encode_event_record
from headrace.broker.kafka.failures import too_large
from headrace.broker.kafka.publisher import Publisher
from headrace.broker.kafka.statements import statement
from headrace.broker.kafka.tenure import FENCE_EVERY_MS, STATE_EVERY_MS, Tenure

logger = logging.getLogger(__name__)

_STATED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """One event of one log."""

    tenure: Tenure
    key: str
    event: Event
    beside: Beside = None

    @property
    def record(self) -> Record:
        topic, number = self.tenure.topics.events, self.tenure.number
        closing = self.beside if isinstance(self.beside, Closing) else None
        record = encode_event_record(topic, number, self.key, self.event, closing)
        if isinstance(self.beside, Departure):
            record.headers.append(self.beside.header())
        return record


@dataclass(frozen=True, slots=True)
class _Batch:
    """The records of one call."""

    records: Sequence[Record]
    answers: asyncio.Future[Sequence[Acknowledged]]


class Appender:
    """`most_bytes`: of a record. Appends of one turn of the event loop share a round trip; those that come
    while it is under way do not wait for it. One with other records than events goes by itself: what their
    topics, as their readers may have set or closed them, do not take is no failure of neighbours."""

    def __init__(self, publisher: Publisher, most_bytes: int) -> None:
        self._publisher, self._most_bytes = publisher, most_bytes
        self._under_way: Counter[tuple[int, str]] = Counter()
        self._stating: dict[tuple[int, str], asyncio.Event] = {}
        self._turn: list[_Batch] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def append(self, entries: Sequence[Entry], also: Sequence[Record] = ()) -> None:
        """In one go with the records `also`. When it raises, the fate of all of it is unknown; of what is
        TooLarge, nothing was written, and no one else's."""
        if not entries and not also:
            return
        records = [*(entry.record for entry in entries), *also]
        if any(size_of(record) > self._most_bytes for record in records):
            raise too_large()
        logs = {(id(entry.tenure), entry.key) for entry in entries}
        while stating := logs & self._stating.keys():  # while one is waited for, another one may begin
            await self._stating[stating.pop()].wait()
        self._under_way.update(logs)
        ends = [(entry.tenure.logs, entry.tenure.logs.end) for entry in entries]
        for known, end in ends:
            known.writing.append(end)
        try:
            answers = await self._send(records, apart=bool(also))
        except BaseException:
            for entry, (_, end) in zip(entries, ends, strict=True):
                entry.tenure.doubt(entry.key, end)
            raise
        finally:
            self._under_way -= Counter(logs)
            for known, end in ends:
                known.writing.remove(end)
        now_ms = steady_ms()
        for entry, answer in zip(entries, answers, strict=False):
            entry.tenure.logs.append(entry.key, entry.event, answer.offset, entry.beside, now_ms)

    def is_writing(self, tenure: Tenure, key: str) -> bool:
        """Whether more may stand in that log than we know: the answers of one call come all at once."""
        return self._under_way[id(tenure), key] > 0

    async def _send(self, records: Sequence[Record], *, apart: bool) -> Sequence[Acknowledged]:
        loop = asyncio.get_running_loop()
        batch = _Batch(records, loop.create_future())
        if apart:
            self._begin_to_publish([batch])
            return await batch.answers
        self._turn.append(batch)
        if len(self._turn) == 1:
            loop.call_soon(self._end_turn)
        return await batch.answers

    def _end_turn(self) -> None:
        batches, self._turn = self._turn, []
        self._begin_to_publish(batches)

    def _begin_to_publish(self, batches: Sequence[_Batch]) -> None:
        task = asyncio.create_task(self._publish(batches), name="headrace kafka append")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _publish(self, batches: Sequence[_Batch]) -> None:
        try:
            answers = await self._publisher.send([r for batch in batches for r in batch.records])
        except Exception as error:  # whatever it is: nobody may wait for ever for an answer
            for batch in batches:
                fail(batch.answers, error)
            return
        for batch in batches:
            resolve(batch.answers, answers[: len(batch.records)])
            answers = answers[len(batch.records) :]

    async def hand_back(self, tenures: Sequence[Tenure], reason: str) -> None:
        """Says of all that runs there that it was given up in order: its end is no death."""
        entries = [
            Entry(tenure, key, Handed(run.epoch, reason))
            for tenure in tenures
            for key, run in tenure.runs.items()
            if run.claim is not None and not tenure.logs.log(key).fold.ended
        ]
        await self.append(entries)

    async def repeat_fences(self, tenures: Sequence[Tenure]) -> None:
        """For readers that start later, from a time: they must see the epoch in force."""
        due = [tenure for tenure in tenures if steady_ms() - tenure.fenced_ms >= FENCE_EVERY_MS]
        if not due:
            return
        records = [
            encode_event_record(tenure.topics.events, tenure.number, None, Fence(tenure.epoch))
            for tenure in due
        ]
        told = [tenure.logs.told() for tenure in due]
        for record, headers in zip(records, told, strict=True):
            record.headers.extend(headers)
        answers = await self._publisher.send(records)
        for tenure, answer, headers in zip(due, answers, told, strict=True):
            tenure.logs.fence(tenure.epoch, answer.offset)
            if headers:
                tenure.logs.ended.told(answer.offset)
            tenure.fenced_ms = steady_ms()

    async def state_anew(self, tenures: Sequence[Tenure]) -> None:
        """Logs that began long ago, so that a successor need not read back so far."""
        before_ms = steady_ms() - STATE_EVERY_MS
        for tenure in tenures:
            overdue = [key for key in tenure.logs.overdue(before_ms) if not tenure.in_doubt(key)]
            for key in overdue[:_STATED_AT_ONCE]:
                if not self._under_way[id(tenure), key] and not tenure.in_doubt(key):
                    await self._state(tenure, key)

    async def _state(self, tenure: Tenure, key: str) -> None:
        record = statement(tenure.topics.events, tenure.number, key, tenure.logs.log(key).fold)
        if size_of(record) > self._most_bytes:
            return  # then a restore has to read back further
        done = self._stating[id(tenure), key] = asyncio.Event()
        try:
            (answer,) = await self._publisher.send([record])
            tenure.logs.stated(key, answer.offset, steady_ms())
        except BrokerError as error:
            logger.debug("a log is stated later: %s", error)
        finally:
            del self._stating[id(tenure), key]
            done.set()
