"""An in-memory log with Kafka's rules, for tests only: proof that the queue contract fits Kafka.

A model for whoever writes the Kafka adapter. What it takes over from Kafka: topics per lane with partitions
and offsets; events beside the requests, partition by partition; no reads by key; a consumer group with
cooperative hand-over and generations; one epoch per partition, raised by a commit that the group fences;
fence, then wait, then read; commits of a contiguous prefix with the rest in the metadata; no delivery count;
settling by a transaction that an outdated member is refused; retries by a delay topic; cancellations by a
compacted topic; appends that nothing fences, so that only the fold makes a zombie's events void.

    MemoryCluster    the broker: topics, group, transactions               memory_cluster, _topics, _group
    MemoryLog        `Broker`: one connection to it                                             this file
    LogReader        reads one request's log, from pool to pool                              memory_reader
    MemorySession    `ConsumerSession`: delivers, opens, appends                            memory_session
    Settling         ends holds: events, then a transaction                                memory_settling
    MemoryMember     its membership: polls, fences and restores, commits                     memory_member
    Tenure           what an owner knows of a partition: folds, twins                        memory_tenure
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from msgspec import structs

from headrace.broker.contract import (
    CancelResult,
    ConsumerEntry,
    DeadLettered,
    LaneDepth,
    LaneStats,
    Lease,
    Published,
    PublishResult,
    QueueStats,
    ResultLine,
    Stray,
)
from headrace.broker.errors import BrokerError, UnknownCursor
from headrace.broker.events import Logged
from headrace.broker.headers import publishable_headers
from headrace.broker.ids import new_request_id
from headrace.broker.message import DEFAULT_POOL, Lane, Message, RequestRef
from headrace.broker.names import POOL
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_codec import (
    ORIGIN,
    REASON,
    Decoded,
    Undecodable,
    decode_record,
    encode_message,
    sent_record,
)
from tests.support.memory_reader import LogReader
from tests.support.memory_session import MemorySession
from tests.support.memory_topics import (
    Partition,
    PartitionId,
    Record,
    parse_position,
    partition_number,
    position,
)


class MemoryLog:
    """`Broker` over a cluster in this process. Several may share one cluster, as several processes would.

    Without a cluster it makes its own, which runs by the system's clock.
    """

    def __init__(self, cluster: MemoryCluster | None = None) -> None:
        self.cluster = cluster or MemoryCluster()
        self.names = self.cluster.names
        self._round_robin = itertools.count()

    # -------------------------------------------------------------------------------------- publishing

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Nobody can look up a key, so a known id is simply appended again: a twin, or a conflict, which
        shows when it is opened."""
        for message in messages:
            _check_pool(message.pool)
            publishable_headers(message, self.names)
        await self.cluster.hop()
        return [self._publish(message) for message in messages]

    def _publish(self, message: Message) -> Published:
        if message.request_id is None:
            number = next(self._round_robin) % self.cluster.width
        else:
            number = partition_number(RequestRef(message.request_id, message.tenant), self.cluster.width)
        self.cluster.open_pool(message.pool)
        partition = self.cluster.partitions[PartitionId(message.lane, number, message.pool)]
        record = encode_message(message, self.names, self.cluster.clock.now_ms())
        offset = self.cluster.append(partition.requests, record)
        request_id = message.request_id or position(self.names, partition.id, offset)
        return Published(RequestRef(request_id, message.tenant))

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        return 0

    async def cancel(self, ref: RequestRef) -> CancelResult:
        """A keyed record of the control topic; what to answer takes a scan, bounded in real life."""
        await self.cluster.hop()
        home = self._home(ref)
        if home is not None and self._has_ended(ref, home):
            return CancelResult.ENDED
        self.cluster.control.mark(ref, self.cluster.clock.now_ms())
        self.cluster.notify()
        return CancelResult.UNKNOWN if home is None else CancelResult.MARKED

    def _has_ended(self, ref: RequestRef, home: Partition) -> bool:
        reader = LogReader(self.cluster, ref, home)
        return [*reader.read_on()] != [] and reader.fold.ended

    # ------------------------------------------------------------------------------------ the log

    def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        return self._watch(ref, cursor)

    async def _watch(self, ref: RequestRef, cursor: str) -> AsyncIterator[Logged]:
        home = self._home(ref)
        if cursor:
            self._check_cursor(home, ref, cursor)
        while home is None:
            seen = self.cluster.version
            home = self._home(ref)
            if home is None:
                await self.cluster.changed(seen)
        reader = LogReader(self.cluster, ref, home)
        while not reader.fold.ended:
            seen = self.cluster.version
            for entry in reader.read_on():
                yield entry
            if not reader.fold.ended:
                await self.cluster.changed(seen)

    def _check_cursor(self, home: Partition | None, ref: RequestRef, cursor: str) -> None:
        """A cursor names an entry that this request's readers have seen."""
        if home is None or all(
            entry.cursor != cursor for entry in LogReader(self.cluster, ref, home).read_on()
        ):
            raise UnknownCursor(f"{cursor!r} names no place in the log of {ref.request_id}")

    async def ping(self) -> None:
        await self.cluster.hop()

    async def known(self, ref: RequestRef) -> bool:
        await self.cluster.hop()
        return self._home(ref) is not None

    def _home(self, ref: RequestRef) -> Partition | None:
        """The partition of a request: where its position says, or where the key points, in each lane; a
        publisher with another hash is found by a scan of the rest."""
        place = parse_position(self.names, ref.request_id)
        if place is not None:
            candidates = [place[0]]
        else:
            number = partition_number(ref, self.cluster.width)
            candidates = sorted(self.cluster.partitions, key=lambda p: p.number != number)
        for candidate in candidates:
            partition = self.cluster.partitions.get(candidate)
            if partition is not None and self._holds(partition, ref):
                return partition
        return None

    def _holds(self, partition: Partition, ref: RequestRef) -> bool:
        decoded = (decode_record(r, partition.id, at, self.names) for at, r in partition.requests.read())
        return any(isinstance(d, Decoded) and d.ref == ref and not d.forwarded for d in decoded)

    # ---------------------------------------------------------------------------- results, dead letters

    def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        return self._results(topic or self.names.results, cursor)

    async def _results(self, topic: str, cursor: str) -> AsyncIterator[ResultLine]:
        lines = self.cluster.topic(topic)
        if cursor and not (cursor.isascii() and cursor.isdigit() and int(cursor) < lines.end):
            raise UnknownCursor(f"{cursor!r} names no line of {topic}")
        offset = int(cursor) + 1 if cursor else 0
        while True:
            seen, end = self.cluster.version, lines.end
            for at, record in lines.read(offset, end):
                assert record.value is not None
                yield ResultLine(str(at), record.value, {k: v.decode() for k, v in record.headers.items()})
            offset = end
            await self.cluster.changed(seen)

    async def trim_results(self, topic: str, cursor: str) -> None:
        await self.cluster.hop()
        self.cluster.topic(topic).delete_below(int(cursor) + 1)

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        await self.cluster.hop()
        return [self._letter(offset, record) for offset, record in self._letters()][-limit:]

    async def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        await self.cluster.hop()
        for offset, record in self._letters():
            yield self._letter(offset, record)

    async def dead_letter(self, position: str) -> DeadLettered | None:
        await self.cluster.hop()
        found = self._find_letter(position)
        return None if found is None else self._letter(*found)

    async def replay(self, position: str) -> RequestRef | None:
        await self.cluster.hop()
        found = self._find_letter(position)
        if found is None:
            return None
        offset, record = found
        origin = parse_position(self.names, record.headers[ORIGIN].decode())
        if origin is None:
            raise BrokerError(f"{position} cannot be replayed: it does not say which lane it came from")
        decoded = decode_record(sent_record(record), *origin, self.names)
        if isinstance(decoded, Undecodable):
            raise BrokerError(f"{position} cannot be replayed, since it is no message: {decoded.reason}")
        old = decoded.message
        headers = {**old.headers, "replay-of": decoded.ref.request_id}
        again = structs.replace(old, request_id=new_request_id(old.lane), headers=headers)
        self.cluster.control.discarded.add(offset)
        return self._publish(again).ref

    async def discard(self, positions: Sequence[str]) -> int:
        await self.cluster.hop()
        found = {letter[0] for position in positions if (letter := self._find_letter(position)) is not None}
        self.cluster.control.discarded |= found
        return len(found)

    def _letters(self) -> list[tuple[int, Record]]:
        letters = self.cluster.topic(self.names.dead_letters).read()
        return [letter for letter in letters if letter[0] not in self.cluster.control.discarded]

    def _find_letter(self, position: str) -> tuple[int, Record] | None:
        topic = self.names.dead_letters
        return next((letter for letter in self._letters() if position == f"{topic}/{letter[0]}"), None)

    def _letter(self, offset: int, record: Record) -> DeadLettered:
        shown = {name: value.decode(errors="replace") for name, value in record.headers.items()}
        sent = {name: shown[name] for name in sent_record(record).headers}
        position = f"{self.names.dead_letters}/{offset}"
        return DeadLettered(position, shown[ORIGIN], shown[REASON], record.value or b"", sent, record.at_ms)

    # -------------------------------------------------------------------------------------- looking on

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats:
        await self.cluster.hop()
        leases = self._leases(pool)
        partitions = [p for p in self.cluster.partitions.values() if p.id.pool == pool]
        return QueueStats(
            lanes={lane: self._lane_stats(lane, pool, leases) for lane in Lane},
            leases=leases,
            retrying=sum(1 for p in partitions for _ in p.delayed()),
            dead_letters=len(self._letters()),
        )

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        lanes = (await self.stats(pool)).lanes
        return {lane: LaneDepth(stats.waiting, stats.paused) for lane, stats in lanes.items()}

    async def pools(self) -> list[str]:
        return list(self.cluster.pools)

    async def strays(self) -> list[Stray]:
        """None: who writes here goes through `publish`."""
        return []

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        await self.cluster.hop()
        self.cluster.control.paused.add(self.names.requests(lane, pool))

    async def resume(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        await self.cluster.hop()
        self.cluster.control.paused.discard(self.names.requests(lane, pool))
        self.cluster.notify()

    async def consumers(self) -> list[ConsumerEntry]:
        await self.cluster.hop()
        now = self.cluster.clock.now_ms()
        return [
            ConsumerEntry(name, report.pool, report.lanes, report.serves, now - report.at_ms)
            for name, report in self.cluster.control.reports.items()
            if report.serves is not None and now - report.at_ms <= report.lease_ms
        ]

    def _leases(self, pool: str) -> list[Lease]:
        """By what consumers report; a report that was not renewed for a lease is that of a dead one."""
        now = self.cluster.clock.now_ms()
        return [
            Lease(lane, name, held, now - report.at_ms)
            for name, report in self.cluster.control.reports.items()
            if report.pool == pool and now - report.at_ms < report.lease_ms
            for lane, held in report.held.items()
            if held
        ]

    def _lane_stats(self, lane: Lane, pool: str, leases: Sequence[Lease]) -> LaneStats:
        """Unfinished records by the commits, less what is reported as held (taken to be the oldest)."""
        partitions = [p for p in self.cluster.partitions.values() if (p.id.lane, p.id.pool) == (lane, pool)]
        pending = sorted(record.at_ms for p in partitions for record in p.pending())
        leased = min(len(pending), sum(lease.held for lease in leases if lease.lane is lane))
        waiting = pending[leased:]
        oldest_ms = self.cluster.clock.now_ms() - waiting[0] if waiting else 0
        paused = self.names.requests(lane, pool) in self.cluster.control.paused
        return LaneStats(len(waiting), leased, oldest_ms, paused)

    # ----------------------------------------------------------------------------------------- sessions

    async def consume(
        self, lanes: Sequence[Lane], lease_ms: int, *, pool: str = DEFAULT_POOL
    ) -> MemorySession:
        _check_pool(pool)
        await self.cluster.hop()
        self.cluster.open_pool(pool)
        return MemorySession(self.cluster, self.cluster.new_consumer_name(), lanes, lease_ms, pool)

    async def close(self) -> None:
        """Nothing to close: sessions have their own."""


def _check_pool(pool: str) -> None:
    if pool and not POOL.fullmatch(pool):
        raise BrokerError(f"{pool[:40]!r} is no name of a pool")
