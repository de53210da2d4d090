"""Reads what one request has in one events partition: what stands there, and live.

    since a session and 10 s before its request ── history ──► floor of the ring ── tail ──►

Fences of the partition belong to all of its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakValueDictionary

from kafka.structs import TopicPartition

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerUnavailable, UnknownCursor
from headrace.broker.kafka.fences import fence_below
from headrace.broker.kafka.history import History
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Entry, Ring, entry_of
from headrace.broker.kafka.tails import Listener, Tail, Tails
from headrace.broker.names import Names

_PAGE = 512
_FENCES = 1_000
_APART = 1_000  # offsets; streams that start between two of these begin at the first of them
_SKEW_MS = 1_000  # by which the times of ids may be wrong


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a reader starts, and the fence in force there; None: the ring holds all that can be there. What
    stands below `own` was not written for this request, though it may bear its id."""

    start: int | None = None
    own: int = 0
    fence: Entry | None = None


class PartitionReader:
    """`margin_ms`: how long before its request a reader starts, so that it sees the epoch in force."""

    def __init__(self, tails: Tails, history: History, names: Names, margin_ms: int) -> None:
        self._tails, self._history, self._names = tails, history, names
        self._margin_ms = margin_ms
        # The last ones that were asked for, by offset. A partition that was made anew has another ring.
        self._fences: WeakKeyDictionary[Ring, dict[int, tuple[int, Entry | None]]] = WeakKeyDictionary()
        self._looking: WeakValueDictionary[tuple[TopicPartition, int], asyncio.Lock] = WeakValueDictionary()

    async def follow(self, place: LogPlace, key: bytes, since_ms: int) -> AsyncGenerator[Entry, None]:
        """Entries of the request and fences, in order, for ever. `since_ms`: when its request was made (0:
        unknown). Rides out losses of the connection; raises UnknownCursor if entries behind those that were
        given are deleted."""
        tail = await self._attach(place)
        listener = tail.listen(key)
        try:
            ring = tail.ring
            begin = await self._start(place, since_ms, ring)
            start, own, given = begin.start, begin.own, False
            if begin.fence is not None:
                yield begin.fence
            while True:
                self._tails.check()
                listener.clear()
                if tail.ring is not ring:  # the partition was made anew
                    ring, start, own = tail.ring, tail.ring.floor, 0
                if start is None:
                    start = ring.floor
                    if ring.fence is not None:
                        yield ring.fence
                if start < ring.floor:
                    floor = ring.floor
                    async with aclosing(self._older(place, key, start, floor, given)) as older:
                        async for entry in older:
                            if entry.key is None or entry.offset >= own:
                                yield entry
                    start, given = floor, True
                    continue
                # Nothing is awaited between the two: all of the request below `next` is in `entries`.
                entries, start = ring.take(key, start), ring.next
                for entry in entries:
                    yield entry
                given = given or bool(entries)
                start = await _next(listener, start)
        finally:
            tail.unlisten(listener)
            self._tails.detach(tail)

    async def stored(self, place: LogPlace, key: bytes, since_ms: int) -> list[Entry]:
        """What stands there now."""
        partition = self._partition(place)
        spans = await self._history.bounds([partition], self._from_ms(since_ms))
        records = await self._history.all(spans, lambda record: record.key in (key, None))
        return [entry_of(record) for record in records]

    async def at(self, place: LogPlace, offset: int) -> Entry | None:
        """The entry at an offset, whosever it is."""
        partition = self._partition(place)
        start, end = (await self._history.bounds([partition]))[partition]
        if not start <= offset < end:
            return None
        records = await self._history.all({partition: (offset, offset + 1)})
        return entry_of(records[0]) if records else None

    async def _attach(self, place: LogPlace) -> Tail:
        backoff = Backoff()
        while True:
            try:
                return (await self._tails.attach([place]))[0]
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()

    async def _start(self, place: LogPlace, since_ms: int, ring: Ring) -> Begin:
        if since_ms - _SKEW_MS >= ring.floor_ms:
            return Begin()
        partition, backoff = self._partition(place), Backoff()
        while True:
            try:
                start, _ = (await self._history.bounds([partition], self._from_ms(since_ms)))[partition]
                if start >= ring.floor:
                    return Begin()
                below, fence = await self._fence_below(partition, start - start % _APART, ring)
                return Begin(min(start, below), start, fence)
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()

    async def _fence_below(
        self, partition: TopicPartition, offset: int, ring: Ring
    ) -> tuple[int, Entry | None]:
        """The one in force at this offset, or at the first one that is kept, with that offset. Hundreds of
        streams may begin at once, each at another time: those that begin near each other share one look, and
        wait for no other, which may take long."""
        async with self._looking.setdefault((partition, offset), asyncio.Lock()):
            known = self._fences.setdefault(ring, {})
            if offset not in known:
                first, _ = (await self._history.bounds([partition]))[partition]
                found = max(first, offset), await fence_below(self._history, partition, offset)
                while len(known) >= _FENCES:
                    del known[next(iter(known))]
                known[offset] = found
            return known[offset]

    async def _older(
        self, place: LogPlace, key: bytes, start: int, end: int, given: bool
    ) -> AsyncGenerator[Entry, None]:
        """Entries below the ring. `given`: others were given already, so nothing may be missing."""
        partition, backoff = self._partition(place), Backoff()
        while True:
            try:
                first, last = (await self._history.bounds([partition]))[partition]
                if given and first > start:
                    raise UnknownCursor("the log of this request is gone: it is not kept for ever")
                # A list, so that no consumer is kept while our reader takes its time.
                page = await self._history.some(
                    partition, (start, min(end, last)), lambda record: record.key in (key, None), _PAGE
                )
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()
                continue
            for record in page:
                yield entry_of(record)
            if len(page) < _PAGE:
                return
            start, given = page[-1].offset + 1, True

    def _from_ms(self, since_ms: int) -> int | None:
        return max(0, since_ms - self._margin_ms) if since_ms else None

    def _partition(self, place: LogPlace) -> TopicPartition:
        return TopicPartition(self._names.events(place.lane, place.pool), place.partition)


async def _next(listener: Listener, start: int) -> int:
    """Waits for something of the request's own; answers its offset. So a reader that waits for long has
    nothing to read below it, however far the ring has moved on."""
    await listener.ready.wait()
    return start if listener.first is None else max(start, listener.first)
