"""Where the log of a request lies, from its id alone.

    our own id        says lane, partition and time; the pool it does not say, so all pools are looked at
    a position        is the place itself
    somebody's own    where murmur2 and where CRC32 of it point, in each lane; then a scan of the rest

What was published through this connection is remembered. Scans are bounded (`_MOST_RECORDS`, the newest of
each partition first): a foreign id that is older than that is not found any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from headrace.broker.ids import Place, read_request_id
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import POSITION
from headrace.broker.kafka.history import Bounds, History, Wanted
from headrace.broker.kafka.places import (
    LogPlace,
    java_partition,
    librdkafka_partition,
    log_key,
    parse_position,
)
from headrace.broker.kafka.topics import LaneTopics, Topics
from headrace.broker.message import RequestRef
from headrace.broker.names import Names

_REMEMBERED = 20_000
_MOST_RECORDS = 50_000  # of one scan
_LATE_MS = 60 * 60 * 1000  # an id of ours is published within this time of its making


@dataclass(frozen=True, slots=True)
class Home:
    """A log's place, and since when it can have entries (0: unknown). `ended`: its terminal record stands.
    `copy`: offset of the record by which this connection published the request, where an earlier copy may
    have begun the log, long before."""

    place: LogPlace
    since_ms: int
    ended: bool = False
    copy: int | None = None


class Homes:
    """Finds and remembers homes."""

    def __init__(self, topics: Topics, history: History, names: Names, margin_ms: int) -> None:
        self._topics, self._history, self._names = topics, history, names
        self._margin_ms = margin_ms
        self._known: OrderedDict[RequestRef, Home] = OrderedDict()
        self._listeners: dict[RequestRef, list[asyncio.Event]] = {}

    def remember(self, ref: RequestRef, home: Home) -> None:
        self._known[ref] = home
        self._known.move_to_end(ref)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        for listener in self._listeners.get(ref, ()):
            listener.set()

    def remembered(self, ref: RequestRef) -> Home | None:
        return self._known.get(ref)

    def published(self, ref: RequestRef, place: LogPlace, offset: int, at_ms: int) -> None:
        """It was published through this connection. A copy of an earlier request changes nothing: its log
        goes on where it lies."""
        if ref not in self._known:
            copy = offset if self._may_be_older(ref, at_ms) else None
            self.remember(ref, Home(place, at_ms, copy=copy))

    def _may_be_older(self, ref: RequestRef, at_ms: int) -> bool:
        """Whether its log may have begun before what a reader sees who begins at this time. An id of ours
        says since when there can be one; a position is that of the only copy."""
        if (own := read_request_id(ref.request_id)) is not None:
            return own.at_ms < at_ms - self._margin_ms
        return parse_position(self._names, ref.request_id) is None

    def ended(self, ref: RequestRef, home: Home) -> None:
        """Its terminal record was seen."""
        self.remember(ref, replace(home, ended=True))

    def listen(self, ref: RequestRef) -> asyncio.Event:
        """Is set when the request is published through this connection."""
        event = asyncio.Event()
        self._listeners.setdefault(ref, []).append(event)
        return event

    def unlisten(self, ref: RequestRef, event: asyncio.Event) -> None:
        self._listeners[ref].remove(event)
        if not self._listeners[ref]:
            del self._listeners[ref]

    async def sure(self, ref: RequestRef) -> Home | None:
        """The home of a request that cannot have another one, whether it has entries yet or not."""
        if (home := self._known.get(ref)) is not None:
            return home
        own = read_request_id(ref.request_id)
        places = [] if own is None else _own_places(own, await self._topics.existing())
        return Home(places[0], own.at_ms) if own is not None and len(places) == 1 else None

    async def exists(self, place: LogPlace) -> bool:
        return place in _all_places(await self._topics.existing())

    async def find(self, ref: RequestRef) -> Home | None:
        """The home of a request that has a record or an event; None where none is found."""
        if (home := self._known.get(ref)) is not None:
            return home
        lanes = await self._topics.existing()
        if (position := parse_position(self._names, ref.request_id)) is not None:
            return await self._at(position.place, position.offset, lanes)
        for places, since_ms, until_ms in self._searches(ref, lanes):
            if (home := await self._search(ref, places, since_ms, until_ms)) is not None:
                self.remember(ref, home)
                return home
        return None

    async def earliest(self, ref: RequestRef, home: Home) -> Home:
        """The home without doubt: since the first record or event of the request that is found there."""
        found = await self._search(ref, [home.place], None, None)
        sure = found or replace(home, copy=None)
        self.remember(ref, sure)
        return sure

    def begins_here(self, ref: RequestRef, home: Home) -> Home:
        """The same, where its own copy runs."""
        sure = replace(home, copy=None)
        self.remember(ref, sure)
        return sure

    async def candidates(self, ref: RequestRef) -> list[LogPlace]:
        """All places at which the log of a request may yet begin."""
        lanes = await self._topics.existing()
        if (position := parse_position(self._names, ref.request_id)) is not None:
            return [p for p in _all_places(lanes) if p == position.place]
        if (own := read_request_id(ref.request_id)) is not None:
            return _own_places(own, lanes)
        return _all_places(lanes)

    # ------------------------------------------------------------------------------------- searching

    def _searches(
        self, ref: RequestRef, lanes: Sequence[LaneTopics]
    ) -> Iterable[tuple[list[LogPlace], int | None, int | None]]:
        """Places to search, the likely ones first, and between which times."""
        if (own := read_request_id(ref.request_id)) is not None:
            places, since_ms = _own_places(own, lanes), own.at_ms - self._margin_ms
            yield places, since_ms, own.at_ms + _LATE_MS
            yield places, None, None  # the clock of its maker, who may be anybody's client, was wrong
            return
        likely = _likely_places(ref, lanes)
        yield likely, None, None
        yield [place for place in _all_places(lanes) if place not in set(likely)], None, None

    async def _search(
        self, ref: RequestRef, places: Sequence[LogPlace], since_ms: int | None, until_ms: int | None
    ) -> Home | None:
        by_topic = {
            topic: place
            for place in places
            for topic in (
                TopicPartition(self._names.requests(place.lane, place.pool), place.partition),
                TopicPartition(self._names.events(place.lane, place.pool), place.partition),
            )
        }
        spans = _newest(await self._history.bounds(by_topic, since_ms))
        key, request_id = log_key(ref).encode(), ref.request_id.encode(errors="replace")
        tenant = ref.tenant.encode(errors="replace")

        def wanted(record: ConsumerRecord) -> bool:
            if until_ms is not None and record.timestamp > until_ms:
                return False
            if record.key == key:
                return True
            headers = dict(record.headers)
            return headers.get("request-id") == request_id and headers.get("tenant", b"") == tenant

        if len(places) == 1 and since_ms is not None:
            if (found := await self._history.first(spans, wanted)) is None:
                return None
            # It may be a later copy: the id says since when there can be one.
            return Home(places[0], min(found.timestamp, since_ms + self._margin_ms))
        # A request that was passed on stands in several pools; its log begins where it stood first.
        firsts = await self._history.all(spans, _first_of_each(wanted))
        if not firsts:
            return None
        first = min(firsts, key=lambda record: (record.timestamp, POSITION in dict(record.headers)))
        return Home(by_topic[TopicPartition(first.topic, first.partition)], first.timestamp)

    async def _at(self, place: LogPlace, offset: int, lanes: Sequence[LaneTopics]) -> Home | None:
        """The record of a position existed if its offset was given out."""
        if place not in _all_places(lanes):
            return None
        partition = TopicPartition(self._names.requests(place.lane, place.pool), place.partition)
        start, end = (await self._history.bounds([partition]))[partition]
        if offset >= end:
            return None
        stands = await self._history.all({partition: (offset, offset + 1)}) if offset >= start else []
        return Home(place, stands[0].timestamp if stands else 0)


def _own_places(own: Place, lanes: Sequence[LaneTopics]) -> list[LogPlace]:
    return [
        LogPlace(lane.lane, lane.pool, own.place % lane.partitions) for lane in lanes if lane.lane is own.lane
    ]


def _likely_places(ref: RequestRef, lanes: Sequence[LaneTopics]) -> list[LogPlace]:
    key = ref.request_id.encode(errors="replace")
    return [
        LogPlace(lane.lane, lane.pool, number)
        for lane in lanes
        for number in dict.fromkeys(
            (java_partition(key, lane.partitions), librdkafka_partition(key, lane.partitions))
        )
    ]


def _all_places(lanes: Sequence[LaneTopics]) -> list[LogPlace]:
    return [LogPlace(lane.lane, lane.pool, i) for lane in lanes for i in range(lane.partitions)]


def _first_of_each(wanted: Wanted) -> Wanted:
    """Of each partition only the first record that is wanted."""
    seen: set[tuple[str, int]] = set()

    def first(record: ConsumerRecord) -> bool:
        partition = (record.topic, record.partition)
        if partition in seen or not wanted(record):
            return False
        seen.add(partition)
        return True

    return first


def _newest(bounds: Bounds) -> Bounds:
    """Not more than `_MOST_RECORDS` of all partitions together."""
    share = _MOST_RECORDS // max(1, len(bounds))
    return {p: (max(start, end - share), end) for p, (start, end) in bounds.items()}
