"""Reads what stands in topics already: spans of offsets, filtered by whoever asks.

A few assigned consumers are kept for it and lent from scan to scan. The filter runs on the consumer's thread,
so that a scan of a long partition takes no time of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from kafka import KafkaConsumer
from kafka.admin import OffsetSpec
from kafka.structs import TopicPartition

from headrace.broker.kafka.clients import Clients, ConsumerRecord, ConsumerThread

Wanted: TypeAlias = Callable[[ConsumerRecord], bool]
Bounds: TypeAlias = Mapping[TopicPartition, tuple[int, int]]

_AT_ONCE = 4
_PAGE = 2_000
_POLL_MS = 500
_ENDING_S = 1.0
_LOOK_S = 0.01


class History:
    """`committed`: reads by way of `read_committed`, as topics need that transactions write to."""

    def __init__(self, clients: Clients, *, committed: bool = False) -> None:
        self._clients = clients
        self._committed = committed
        self._level = "read_committed" if committed else "read_uncommitted"
        self._idle: list[ConsumerThread] = []
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._closed = False

    async def bounds(self, partitions: Iterable[TopicPartition], since_ms: int | None = None) -> Bounds:
        """First and end offset of each; with `since_ms`, the first one stamped at that time or later."""
        wanted = list(partitions)
        if not wanted:
            return {}
        # The end first: what is appended meanwhile is then within the span, whatever the time says.
        ends = await self._ends(wanted)
        starts = await self._offsets(wanted, OffsetSpec.EARLIEST)
        if since_ms is not None:
            found = await self._offsets(wanted, max(0, since_ms))
            starts = {p: ends[p] if found[p] < 0 else max(found[p], starts[p]) for p in wanted}
        return {p: (min(starts[p], ends[p]), ends[p]) for p in wanted}

    async def _ends(self, wanted: list[TopicPartition]) -> dict[Any, int]:
        """A transaction's end is acknowledged a moment before its records can be seen; one that is open is
        not waited for much longer than that."""
        ends = await self._offsets(wanted, OffsetSpec.LATEST)
        if not self._committed:
            return ends
        written = await self._clients.end_offsets(wanted)
        deadline = time.monotonic() + _ENDING_S
        while any(ends[p] < written[p] for p in wanted) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_S)
            ends = await self._offsets(wanted, OffsetSpec.LATEST)
        return ends

    async def _offsets(self, partitions: list[TopicPartition], spec: OffsetSpec | int) -> dict[Any, int]:
        return await self._clients.offsets(partitions, spec, self._level)

    async def scan(
        self, spans: Bounds, wanted: Wanted | None = None
    ) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Records of each span [from, to) that are wanted, page by page, each partition's in order. What was
        deleted meanwhile is passed over."""
        left = {partition: span for partition, span in spans.items() if span[0] < span[1]}
        if not left:
            return
        async with self._consumer() as thread:
            await thread.call(lambda consumer: _start(consumer, left))
            while left:
                page, done = await thread.call(functools.partial(_page, spans=left, wanted=wanted))
                if page:
                    yield page
                left = {partition: span for partition, span in left.items() if partition not in done}

    async def all(self, spans: Bounds, wanted: Wanted | None = None) -> list[ConsumerRecord]:
        """The same in one list."""
        return [record async for page in self.scan(spans, wanted) for record in page]

    async def some(
        self, partition: TopicPartition, span: tuple[int, int], wanted: Wanted, least: int
    ) -> list[ConsumerRecord]:
        """The first ones that are wanted: all of them, or at least `least`; go on behind the last one."""
        found: list[ConsumerRecord] = []
        async with contextlib.aclosing(self.scan({partition: span}, wanted)) as pages:
            async for page in pages:
                found += page
                if len(found) >= least:
                    break
        return found

    async def first(self, spans: Bounds, wanted: Wanted) -> ConsumerRecord | None:
        """Any one that is wanted."""
        async with contextlib.aclosing(self.scan(spans, wanted)) as pages:
            async for page in pages:
                return page[0]
        return None

    async def close(self) -> None:
        self._closed = True
        for thread in self._idle:
            await thread.close()

    @asynccontextmanager
    async def _consumer(self) -> AsyncIterator[ConsumerThread]:
        async with self._room:
            thread = self._idle.pop() if self._idle else await self._make()
            try:
                yield thread
            except BaseException:
                await thread.close()  # it may stand anywhere
                raise
            if self._closed:
                await thread.close()
            else:
                self._idle.append(thread)

    async def _make(self) -> ConsumerThread:
        return await self._clients.consumer(
            isolation_level=self._level,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=20,
            max_poll_records=_PAGE,
        )


def _start(consumer: KafkaConsumer, spans: Bounds) -> None:
    consumer.assign(list(spans))
    for partition, (start, _) in spans.items():
        consumer.seek(partition, start)
        consumer.resume(partition)  # it may have been read before, and paused at its end


def _page(
    consumer: KafkaConsumer, spans: Bounds, wanted: Wanted | None
) -> tuple[list[ConsumerRecord], set[TopicPartition]]:
    """The next records, and the partitions whose spans are read to their end."""
    polled: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=_POLL_MS, max_records=_PAGE)
    page = [
        record
        for partition, records in polled.items()
        if partition in spans
        for record in records
        if record.offset < spans[partition][1] and (wanted is None or wanted(record))
    ]
    done = {partition for partition, (_, end) in spans.items() if consumer.position(partition) >= end}
    for partition in done:
        consumer.pause(partition)
    return page, done
