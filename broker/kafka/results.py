"""Result topics: lines for outside readers, one partition each, read by `read_committed`.

A cursor is the offset of a line. Lines of aborted transactions are never seen.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

from kafka.structs import TopicPartition

from headrace.broker.backoff import Backoff
from headrace.broker.contract import ResultLine
from headrace.broker.errors import BrokerUnavailable, ReplyNotAllowed, UnknownCursor
from headrace.broker.kafka.clients import Clients, ConsumerThread
from headrace.broker.kafka.codec import readable_headers
from headrace.broker.kafka.topics import Topics
from headrace.broker.names import Names

_POLL_MS = 200
_PAGE = 256
_CURSOR = re.compile(r"[0-9]{1,18}")


class Results:
    """The result topics as one connection reads them."""

    def __init__(self, clients: Clients, topics: Topics, names: Names) -> None:
        self._clients, self._topics, self._names = clients, topics, names
        self._closed = asyncio.Event()

    async def read(self, topic: str | None, cursor: str) -> AsyncIterator[ResultLine]:
        """See `Broker.results`. Reconnects by itself and misses nothing; ends when the broker is closed."""
        name = topic or self._names.results
        start = _behind(cursor, name)
        if name != self._names.results:
            await self._made(name)
        partition, backoff = TopicPartition(name, 0), Backoff()
        thread: ConsumerThread | None = None
        try:
            while not self._closed.is_set():
                try:
                    thread = thread or await self._open(partition, start, cursor)
                    records, _ = await thread.poll_from(partition, _POLL_MS, _PAGE)
                except BrokerUnavailable:
                    await backoff.wait()
                    continue
                backoff.reset()
                for record in records:
                    yield ResultLine(
                        str(record.offset), record.value or b"", readable_headers(record.headers)
                    )
        finally:
            if thread is not None:
                await thread.close()

    async def trim(self, topic: str, cursor: str) -> None:
        """See `Broker.trim_results`."""
        if not self._names.reply_allowed(topic):
            raise ReplyNotAllowed(f"only reply topics can be trimmed, and {topic[:200]!r} is none")
        if cursor:
            await trim(self._clients, {TopicPartition(topic, 0): _behind(cursor, topic)})

    def close(self) -> None:
        self._closed.set()

    async def _made(self, name: str) -> None:
        backoff = Backoff()
        while not self._closed.is_set():
            try:
                await self._topics.reply(name)
                return
            except BrokerUnavailable:
                await backoff.wait()

    async def _open(self, partition: TopicPartition, start: int, cursor: str) -> ConsumerThread:
        thread = await self._clients.consumer(
            isolation_level="read_committed", auto_offset_reset="earliest", fetch_max_wait_ms=_POLL_MS
        )
        try:
            if start > (await self._clients.end_offsets([partition]))[partition]:
                raise UnknownCursor(f"the cursor {cursor[:60]!r} names no line of {partition.topic}")
            await thread.assign({partition: start})
        except BaseException:
            await thread.close()
            raise
        return thread


async def trim(clients: Clients, below: dict[TopicPartition, int]) -> None:
    """Deletes the records below these offsets. (Kafka refuses offsets behind the end.)"""
    if below:
        await clients.admin(lambda admin: admin.delete_records(below))


def _behind(cursor: str, topic: str) -> int:
    if cursor and not _CURSOR.fullmatch(cursor):
        raise UnknownCursor(f"the cursor {cursor[:60]!r} names no line of {topic}")
    return int(cursor) + 1 if cursor else 0
