"""An in-memory log with Kafka's rules, for tests only: proof that the queue contract fits Kafka.

A model for whoever writes the Kafka adapter. What it takes over from Kafka: topics per lane with partitions
and offsets; events beside the requests, partition by partition; no reads by key; a consumer group with
cooperative hand-over and generations; one epoch per partition, raised by a commit that the group fences;
fence, then wait, then read; commits of a contiguous prefix with the rest in the metadata; no delivery count;
settling by a transaction that an outdated member is refused; retries by a delay topic; cancellations by a
compacted topic; appends that nothing fences, so that only the fold makes a zombie's events void.

    MemoryCluster    the broker: topics, group, transactions               memory_cluster, _topics, _group
    MemoryLog        `Broker`: one connection to it                                             this file
    MemorySession    `ConsumerSession`: delivers, opens, appends, settles                   memory_session
    MemoryMember     its membership: polls, fences and restores, commits                     memory_member
    Tenure           what an owner knows of a partition: folds, twins                        memory_tenure
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

from headrace.broker.contract import (
    CancelResult,
    DeadLettered,
    LaneStats,
    Lease,
    Published,
    PublishResult,
    QueueStats,
    ResultLine,
)
from headrace.broker.errors import ReplyNotAllowed, UnknownCursor
from headrace.broker.events import Event, Logged
from headrace.broker.fold import Fold
from headrace.broker.message import Lane, Message, RequestRef
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_codec import Decoded, decode_record, encode_message, log_key
from tests.support.memory_events import read_events, restore
from tests.support.memory_session import MemorySession
from tests.support.memory_topics import Partition, PartitionId, parse_position, partition_number, position


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
            if message.reply_to is not None and not self.names.reply_allowed(message.reply_to):
                raise ReplyNotAllowed(
                    f"results cannot go to {message.reply_to!r}: reply topics begin with "
                    f"{self.names.prefix}.reply."
                )
        await self.cluster.hop()
        return [self._publish(message) for message in messages]

    def _publish(self, message: Message) -> Published:
        if message.request_id is None:
            number = next(self._round_robin) % self.cluster.width
        else:
            number = partition_number(RequestRef(message.request_id, message.tenant), self.cluster.width)
        partition = self.cluster.partitions[PartitionId(message.lane, number)]
        record = encode_message(message, self.cluster.clock.now_ms())
        offset = self.cluster.append(partition.requests, record)
        request_id = message.request_id or position(self.names, partition.id, offset)
        return Published(RequestRef(request_id, message.tenant))

    async def cancel(self, ref: RequestRef) -> CancelResult:
        """A keyed record of the control topic; what to answer takes a scan, bounded in real life."""
        await self.cluster.hop()
        home = self._home(ref)
        if home is not None and restore(home.events, log_key(ref), home.events.end).fold.ended:
            return CancelResult.ENDED
        self.cluster.control.mark(ref, self.cluster.clock.now_ms())
        self.cluster.notify()
        return CancelResult.UNKNOWN if home is None else CancelResult.MARKED

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
        fold, offset = Fold(), 0
        fence: Logged | None = None
        while not fold.ended:
            seen, end = self.cluster.version, home.events.end
            for at, event, _ in read_events(home.events, log_key(ref), offset, end):
                logged = Logged(self._cursor(home, at), event)
                if home.events.at(at).key is None and fold.started is None:
                    fence = logged  # of all fences before the request began, the last one says it all
                    continue
                for ready in [fence, logged] if fence is not None else [logged]:
                    fold.read(ready.event)
                    yield ready
                fence = None
                if fold.ended:
                    return
            offset = end
            await self.cluster.changed(seen)

    def _cursor(self, home: Partition, offset: int) -> str:
        return f"{home.id.lane.value}/{home.id.number}/{offset}"

    def _check_cursor(self, home: Partition | None, ref: RequestRef, cursor: str) -> None:
        """A cursor names an entry that this request's readers have seen."""
        if home is not None:
            known: Iterator[tuple[int, Event, object]] = read_events(
                home.events, log_key(ref), 0, home.events.end
            )
            if any(self._cursor(home, offset) == cursor for offset, _, _ in known):
                return
        raise UnknownCursor(f"{cursor!r} names no place in the log of {ref.request_id}")

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
        return any(isinstance(d, Decoded) and d.ref == ref for d in decoded)

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
        topic, letters = self.names.dead_letters, []
        for offset, record in itertools.islice(self.cluster.topic(topic).read(), limit):
            origin, reason = (record.headers[f"headrace-{name}"].decode() for name in ("origin", "reason"))
            letters.append(DeadLettered(f"{topic}/{offset}", origin, reason, record.value or b""))
        return letters

    # -------------------------------------------------------------------------------------- looking on

    async def stats(self) -> QueueStats:
        await self.cluster.hop()
        leases = self._leases()
        return QueueStats(
            lanes={lane: self._lane_stats(lane, leases) for lane in Lane},
            leases=leases,
            retrying=sum(1 for p in self.cluster.partitions.values() for _ in p.delayed()),
            dead_letters=self.cluster.topic(self.names.dead_letters).end,
        )

    def _leases(self) -> list[Lease]:
        """By what consumers report; a report that was not renewed for a lease is that of a dead one."""
        now = self.cluster.clock.now_ms()
        return [
            Lease(lane, name, held, now - report.at_ms)
            for name, report in self.cluster.control.reports.items()
            if now - report.at_ms < report.lease_ms
            for lane, held in report.held.items()
            if held
        ]

    def _lane_stats(self, lane: Lane, leases: Sequence[Lease]) -> LaneStats:
        """Unfinished records by the commits, less what is reported as held (taken to be the oldest)."""
        partitions = [p for p in self.cluster.partitions.values() if p.id.lane is lane]
        pending = sorted(record.at_ms for p in partitions for record in p.pending())
        leased = min(len(pending), sum(lease.held for lease in leases if lease.lane is lane))
        waiting = pending[leased:]
        oldest_ms = self.cluster.clock.now_ms() - waiting[0] if waiting else 0
        return LaneStats(len(waiting), leased, oldest_ms)

    # ----------------------------------------------------------------------------------------- sessions

    async def consume(self, lanes: Sequence[Lane], lease_ms: int) -> MemorySession:
        await self.cluster.hop()
        return MemorySession(self.cluster, self.cluster.new_consumer_name(), lanes, lease_ms)

    async def close(self) -> None:
        """Nothing to close: sessions have their own."""
