"""Where the log of a request lies, from its id alone.

    our own id        says lane, partition and time; the pool it does not say, so all pools are looked at
    a position        is the place itself
    somebody's own    where murmur2 and where CRC32 of it point, in each lane; then a scan of the rest

What was published through this connection is remembered. Scans are bounded (`_MOST_RECORDS`): for an id of
ours from its making on, and then, as for all others, the newest of each partition. What stands in neither is
not found any more. A log of which only later events are found is followed back to its beginning: see
`_newest_of`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from headrace.broker.ids import Place, read_request_id
from headrace.broker.kafka.beginnings import is_beginning, is_cut
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.finding import (
    age,
    copy_named,
    copy_of,
    events_of,
    first_of_each,
    newest,
    oldest,
    partition_of,
    wanted,
)
from headrace.broker.kafka.history import Bounds, History
from headrace.broker.kafka.places import (
    LogPlace,
    java_partition,
    librdkafka_partition,
    parse_position,
)
from headrace.broker.kafka.topics import LaneTopics, Topics
from headrace.broker.message import RequestRef
from headrace.broker.names import Names

_REMEMBERED = 20_000
_MOST_RECORDS = 50_000  # of one scan
_WIDER = 8  # times as many, in the next scan for the beginning of a log
_FIRST_FEW = 8  # records of a partition, by which a beginning is known
_LATE_MS = 60 * 60 * 1000  # an id of ours is published within this time of its making


@dataclass(frozen=True, slots=True)
class Home:
    """A log's place, and since when it can have entries (0: unknown). `ended`: its terminal record stands.
    `copy`: offset of the record by which the request was published, where an earlier copy may have begun the
    log, long before."""

    place: LogPlace
    since_ms: int
    ended: bool = False
    copy: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """An event of a log that a reader was shown."""

    place: LogPlace
    offset: int
    at_ms: int


class Homes:
    """Finds and remembers homes."""

    def __init__(
        self,
        topics: Topics,
        history: History,
        names: Names,
        margin_ms: int,
        log_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._topics, self._history, self._names = topics, history, names
        self._margin_ms, self._log_ms, self._now_ms = margin_ms, log_ms, now_ms
        self._known: OrderedDict[RequestRef, Home] = OrderedDict()
        self._listeners: dict[RequestRef, list[asyncio.Event]] = {}
        self._wide = asyncio.Lock()

    def remember(self, ref: RequestRef, home: Home) -> None:
        self._known[ref] = home
        self._known.move_to_end(ref)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        for listener in self._listeners.get(ref, ()):
            listener.set()

    def remembered(self, ref: RequestRef) -> Home | None:
        """What is known of it. Where its log's time may be over since it ended, its id may be that of a new
        request, published by somebody else, and at another place."""
        home = self._known.get(ref)
        if home is not None and home.ended and 0 < home.since_ms < self._now_ms() - self._log_ms:
            del self._known[ref]
            return None
        return home

    def published(self, ref: RequestRef, place: LogPlace, offset: int, at_ms: int) -> None:
        """It was published through this connection. A copy of an earlier request changes nothing: its log
        goes on where it lies, as long as logs are kept."""
        known = self._known.get(ref)
        if known is None or 0 < known.since_ms < at_ms - self._log_ms:
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
        if (home := self.remembered(ref)) is not None:
            return home
        own = read_request_id(ref.request_id)
        places = [] if own is None else _own_places(own, await self._topics.existing())
        return Home(places[0], own.at_ms) if own is not None and len(places) == 1 else None

    async def exists(self, place: LogPlace) -> bool:
        return place in _all_places(await self._topics.existing())

    async def find(self, ref: RequestRef) -> Home | None:
        """The home of a request that has a record or an event; None where none is found."""
        if (home := self.remembered(ref)) is not None:
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
        found = await self._newest_of(ref, [home.place])
        sure = found or replace(home, copy=None)
        self.remember(ref, sure)
        return sure

    async def of_seen(self, ref: RequestRef, seen: Seen) -> Home:
        """The home of the log that this event belongs to."""
        found = await self._newest_of(ref, [seen.place], seen.offset)
        home = found or Home(seen.place, seen.at_ms)
        self.remember(ref, home)
        return home

    def is_behind(self, home: Home, seen: Seen) -> bool:
        """Whether who reads from there on is not shown what somebody has seen already: a log that began anew
        may be taken for a whole one."""
        return seen.at_ms < home.since_ms - self._margin_ms

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
        if since_ms is None:
            return await self._newest_of(ref, places)
        by_topic = self._by_topic(places)
        spans = oldest(await self._history.bounds(by_topic, since_ms), _MOST_RECORDS)
        of_request = wanted(ref, until_ms)
        # It may be a later copy: the id says since when there can be one.
        made_ms = since_ms + self._margin_ms
        if len(places) == 1:
            found = await self._history.first(spans, of_request)
            return None if found is None else Home(places[0], min(found.timestamp, made_ms))
        # A request that was passed on stands in several pools; its log begins where it stood first.
        firsts = await self._history.all(spans, first_of_each(of_request, 1))
        if not firsts:
            return None
        first = min(firsts, key=age)
        return Home(by_topic[partition_of(first)], min(first.timestamp, made_ms))

    async def _newest_of(
        self, ref: RequestRef, places: Sequence[LogPlace], back_to: int | None = None
    ) -> Home | None:
        """Looks at the newest records. Where the events that are found there lack others, at more and more
        of that place; where they do not tell, the home is in doubt: a whole partition may take minutes.
        `back_to`: the offset of an event that is known, in the only place."""
        by_topic = self._by_topic(places)
        bounds, most = await self._history.bounds(by_topic), _MOST_RECORDS
        if back_to is not None:
            most = self._enough(bounds, places[0], back_to)
        while True:
            spans = newest(bounds, most)
            firsts = await self._first_few(ref, spans, wide=most > _MOST_RECORDS)
            if not firsts:
                return None
            first = min(firsts, key=age)
            place = by_topic[partition_of(first)]
            requests, events = self._topics_at(place)
            of_log = events_of(record for record in firsts if partition_of(record) == events)
            whole = spans[events] == bounds[events]
            if whole or not is_cut(of_log):
                doubted = copy_named(of_log, place, self._names), copy_of(first, requests)
                copy = next((offset for offset in doubted if offset is not None), None)
                begins = whole or is_beginning(of_log) is True
                return Home(place, first.timestamp, copy=None if begins else copy)
            bounds, most = {p: bounds[p] for p in (requests, events)}, most * _WIDER

    def _enough(self, bounds: Bounds, place: LogPlace, offset: int) -> int:
        """How many records to look at, so that the event at this offset is among them if it still stands."""
        most, (_, events) = _MOST_RECORDS, self._topics_at(place)
        while newest(bounds, most)[events][0] > max(offset, bounds[events][0]):
            most *= _WIDER
        return most

    async def _first_few(self, ref: RequestRef, spans: Bounds, *, wide: bool) -> list[ConsumerRecord]:
        """Of each partition. Wide scans, which take long, are made one after the other: those who begin to
        read need the same few consumers."""
        async with self._wide if wide else contextlib.nullcontext():
            return await self._history.all(spans, first_of_each(wanted(ref, None), _FIRST_FEW))

    def _by_topic(self, places: Iterable[LogPlace]) -> dict[TopicPartition, LogPlace]:
        return {topic: place for place in places for topic in self._topics_at(place)}

    def _topics_at(self, place: LogPlace) -> tuple[TopicPartition, TopicPartition]:
        """Of requests, and of events."""
        names, number = self._names, place.partition
        return (
            TopicPartition(names.requests(place.lane, place.pool), number),
            TopicPartition(names.events(place.lane, place.pool), number),
        )

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
