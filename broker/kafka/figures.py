"""What waits, what is held, what is late: from commits, reports, and as little reading as will do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka import KafkaConsumer
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from headrace.broker.contract import ConsumerEntry, LaneDepth, LaneStats, Lease, QueueStats, Stray
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka.clients import ConsumerThread
from headrace.broker.kafka.commits import Committed, decode_metadata
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.control import Report
from headrace.broker.kafka.history import Bounds, History
from headrace.broker.kafka.letters import DeadLetters
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.topics import LaneTopics, group_of
from headrace.broker.message import Lane

_COUNTED = 10_000  # delayed deliveries; more are not counted one by one
_LOOKED_AT = 1_000  # records of a partition, for the age of the oldest that waits
_ASK_MS = 2_000  # for one commit; then the thread is free for a moment, and may end
_PATIENCE_S = 25.0  # longer than the open transaction of a dead owner
_RECENT_S = 1.0  # so old a commit may be for who asks again and again


@dataclass(frozen=True, slots=True)
class _Standing:
    """Partitions with their bounds and what the group committed for them; those that are empty left out."""

    bounds: Bounds
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)

    def of(self, topics: Iterable[str]) -> list[TopicPartition]:
        wanted = set(topics)
        return [partition for partition in self.bounds if partition.topic in wanted]

    def unfinished(self, partition: TopicPartition) -> int:
        start, end = self.bounds[partition]
        committed = self.committed[partition]
        return committed.unfinished(end) if committed.base >= start else end - start

    def span(self, partition: TopicPartition) -> tuple[int, int]:
        start, end = self.bounds[partition]
        return max(start, min(self.committed[partition].base, end)), end


@dataclass(frozen=True, slots=True)
class _Count:
    """Deliveries of a lane, in these partitions."""

    partitions: Sequence[TopicPartition]
    waiting: int
    leased: int


class Figures:
    """`sessions` of this connection are asked themselves; those of others by what they report."""

    def __init__(self, connection: Connection, letters: DeadLetters) -> None:
        self._at, self._letters = connection, letters
        self._groups: dict[str, ConsumerThread] = {}
        self._recent: dict[TopicPartition, tuple[float, Committed]] = {}
        self._asking = asyncio.Lock()
        self._making = asyncio.Lock()

    async def is_finished(self, place: LogPlace, offset: int) -> bool:
        """Whether the delivery of this record was settled, as of a second ago. Many may ask at once."""
        partition = TopicPartition(self._at.names.requests(place.lane, place.pool), place.partition)
        async with self._asking:
            asked_at, committed = self._recent.get(partition, (0.0, Committed()))
            if not committed.finished(offset) and time.monotonic() - asked_at > _RECENT_S:
                asked_at = time.monotonic()
                committed = (await self._committed(place.pool, [partition]))[partition]
                self._recent[partition] = asked_at, committed
        return committed.finished(offset)

    async def stats(self, pool: str, own: Mapping[str, Report]) -> QueueStats:
        """`own`: reports of this connection's sessions, as of now."""
        control = await self._at.control.read_to_end()
        leases = self._leases(pool, {**control.reports, **own})
        lanes = await self._at.topics.existing([pool])
        requests = await self._standing(pool, [lane.requests for lane in lanes], lanes, self._at.history)
        delayed = [topic for lane in lanes for topic in lane.delayed]
        waiting = await self._standing(pool, delayed, lanes, self._at.committed)
        by_lane = {lane.lane: lane for lane in lanes}
        return QueueStats(
            lanes={
                lane: await self._lane_stats(lane, pool, by_lane.get(lane), requests, leases) for lane in Lane
            },
            leases=leases,
            retrying=await self._retrying(waiting),
            dead_letters=await self._letters.count(),
        )

    async def depths(self, pool: str, own: Mapping[str, Report]) -> dict[Lane, LaneDepth]:
        """The same as `stats` says of them, without reading a record."""
        control = await self._at.control.read_to_end()
        leases = self._leases(pool, {**control.reports, **own})
        topics = await self._at.topics.existing([pool])
        requests = await self._standing(pool, [lane.requests for lane in topics], topics, self._at.history)
        by_lane = {lane.lane: lane for lane in topics}
        return {
            lane: LaneDepth(
                waiting=_count(lane, by_lane.get(lane), requests, leases).waiting,
                paused=self._at.control.is_paused(lane, pool),
            )
            for lane in Lane
        }

    async def consumers(self, own: Mapping[str, Report]) -> list[ConsumerEntry]:
        control = await self._at.control.read_to_end()
        now = self._at.clock.now_ms()
        entries = [
            ConsumerEntry(r.name, r.pool, r.lanes, r.serves, max(0, now - r.at_ms))
            for r in {**control.reports, **own}.values()
            if r.serves is not None and now - r.at_ms <= r.lease_ms
        ]
        return sorted(entries, key=lambda entry: entry.name)

    async def strays(self) -> list[Stray]:
        """Topics beside those of our lanes. They may not be ours at all; all that is said of them is how many
        records they hold."""
        topics = await self._at.topics.strays()
        partitions = [TopicPartition(topic, i) for topic, count in topics.items() for i in range(count)]
        held = dict.fromkeys(sorted(topics), 0)
        for partition, (start, end) in (await self._at.history.bounds(partitions)).items():
            held[partition.topic] += end - start
        return [Stray(topic, records) for topic, records in held.items()]

    async def close(self) -> None:
        for thread in self._groups.values():
            await thread.close()

    # ---------------------------------------------------------------------------------------- figures

    def _leases(self, pool: str, reports: Mapping[str, Report]) -> list[Lease]:
        """A report that was not renewed for a lease is that of a dead one."""
        now = self._at.clock.now_ms()
        return [
            Lease(lane, report.name, held, max(0, now - report.at_ms))
            for report in reports.values()
            if report.pool == pool and now - report.at_ms < report.lease_ms
            for lane, held in report.held.items()
            if held
        ]

    async def _lane_stats(
        self,
        lane: Lane,
        pool: str,
        topics: LaneTopics | None,
        standing: _Standing,
        leases: Sequence[Lease],
    ) -> LaneStats:
        count, oldest_ms = _count(lane, topics, standing, leases), 0
        if count.waiting:
            stamped_ms = await self._oldest_waiting(standing, count)
            oldest_ms = max(0, self._at.clock.now_ms() - stamped_ms)
        return LaneStats(count.waiting, count.leased, oldest_ms, self._at.control.is_paused(lane, pool))

    async def _oldest_waiting(self, standing: _Standing, count: _Count) -> int:
        """When the oldest record that nobody holds was published; that of the newest looked at, where more
        are held than are looked at."""
        spans = {}
        for partition in count.partitions:
            start, end = standing.span(partition)
            beyond = len(standing.committed[partition].beyond)
            spans[partition] = (start, min(end, start + beyond + min(count.leased + 1, _LOOKED_AT)))

        records = await self._at.history.all(
            spans,
            lambda r: not standing.committed[TopicPartition(r.topic, r.partition)].finished(r.offset),
        )
        stamped = sorted(record.timestamp for record in records)
        return stamped[min(count.leased, len(stamped) - 1)] if stamped else self._at.clock.now_ms()

    async def _retrying(self, standing: _Standing) -> int:
        """Transactions leave marks among delayed records, so these are counted one by one, up to a bound."""
        spans = {partition: standing.span(partition) for partition in standing.bounds}
        if sum(end - start for start, end in spans.values()) > _COUNTED:
            return sum(standing.unfinished(partition) for partition in spans)
        found = await self._at.committed.all(
            spans,
            lambda r: not standing.committed[TopicPartition(r.topic, r.partition)].finished(r.offset),
        )
        return len(found)

    # ---------------------------------------------------------------------------------------- commits

    async def _standing(
        self, pool: str, topics: Sequence[str], lanes: Sequence[LaneTopics], history: History
    ) -> _Standing:
        counts = {topic: lane.partitions for lane in lanes for topic in (lane.requests, *lane.delayed)}
        partitions = [TopicPartition(topic, i) for topic in topics for i in range(counts[topic])]
        bounds = await history.bounds(partitions)
        filled = {partition: span for partition, span in bounds.items() if span[0] < span[1]}
        return _Standing(filled, await self._committed(pool, list(filled)))

    async def _committed(
        self, pool: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Committed]:
        """What the group of a pool committed. Stable offsets: a transaction that just ended is waited for."""
        if not partitions:
            return {}
        thread = await self._reader_of(group_of(self._at.names, pool))
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return await thread.call(lambda consumer: _read_commits(consumer, partitions))
            except BrokerUnavailable as error:
                if not isinstance(error.__cause__, KafkaTimeoutError) or time.monotonic() > deadline:
                    raise

    async def _reader_of(self, group: str) -> ConsumerThread:
        async with self._making:  # of many who ask at once, the first one makes it
            if group not in self._groups:
                self._groups[group] = await self._at.clients.consumer(
                    group_id=group, isolation_level="read_committed"
                )
            return self._groups[group]


def _count(lane: Lane, topics: LaneTopics | None, standing: _Standing, leases: Sequence[Lease]) -> _Count:
    """Unfinished records by the commits, less what is reported as held (taken to be the oldest)."""
    partitions = [] if topics is None else standing.of([topics.requests])
    unfinished = sum(standing.unfinished(partition) for partition in partitions)
    leased = min(unfinished, sum(lease.held for lease in leases if lease.lane is lane))
    return _Count(partitions, unfinished - leased, leased)


def _read_commits(
    consumer: KafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Committed]:
    """By itself the client asks for ever while the group's coordinator is away. Its thread could not be ended
    then, and whoever closes the connection waits for it."""
    found = {p: consumer.committed(p, metadata=True, timeout_ms=_ASK_MS) for p in partitions}
    return {
        partition: Committed() if commit is None else decode_metadata(commit.offset, commit.metadata)
        for partition, commit in found.items()
    }
