"""The broker process: topics, the group, commits and transactions. Everything here outlives its clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.broker.contract import Serves
from headrace.broker.message import DEFAULT_POOL, Lane, RequestRef
from headrace.broker.names import Names
from tests.support.memory_clock import Clock, SystemClock
from tests.support.memory_codec import due_ms, log_key
from tests.support.memory_group import Fencing, Group
from tests.support.memory_topics import Committed, Partition, PartitionId, Record, Topic


async def one_hop() -> None:
    """A round trip to the broker: others may run meanwhile."""
    await asyncio.sleep(0)


@dataclass(slots=True)
class Transaction:
    """What one settlement changes, all of it or nothing: `records` by topic, and the offset commit."""

    partition: Partition
    committed: Committed
    records: Sequence[tuple[str, Record]] = ()
    delays: Sequence[Record] = ()
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a consumer tells the control topic about itself: how many deliveries of a lane it holds, and,
    once it was announced, what it serves."""

    held: dict[Lane, int]
    at_ms: int
    lease_ms: int
    pool: str
    lanes: tuple[Lane, ...]
    serves: Serves | None


@dataclass(slots=True)
class Control:
    """`headrace.control`, compacted: the last mark of each request, the last report of each consumer, which
    lanes are paused (their request topics), and which dead letters were discarded (their offsets).

    `log` is the tail that followers read, `marks` what is left after compaction.
    """

    log: list[RequestRef] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    discarded: set[int] = field(default_factory=set)

    def mark(self, ref: RequestRef, at_ms: int) -> None:
        self.log.append(ref)
        self.marks[log_key(ref)] = at_ms


class MemoryCluster:
    """One Kafka cluster in this process, shared by all its `MemoryLog` connections.

    `hop` is awaited wherever a real client would wait for the broker; tests pass one that lets other tasks
    run for a while, so that every gap in the protocol is really open.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        prefix: str = "headrace",
        partitions: int = 4,
        hop: Callable[[], Awaitable[None]] = one_hop,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.names = Names(prefix)
        self.width = partitions
        self.partitions: dict[PartitionId, Partition] = {}
        self.group = Group(self.clock, [])
        self.pools: list[str] = []
        self.open_pool(DEFAULT_POOL)
        self.topics: dict[str, Topic] = {}
        self.control = Control()
        self.version = 0
        self.hop = hop
        self._open: dict[PartitionId, Transaction] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._names = itertools.count(1)

    def open_pool(self, pool: str) -> None:
        """Makes the topics of a pool that is used for the first time."""
        if pool not in self.pools:
            made = [PartitionId(lane, number, pool) for lane in Lane for number in range(self.width)]
            self.pools.append(pool)
            self.partitions |= {partition: Partition(partition) for partition in made}
            self.group.add(made)

    def is_paused(self, partition: PartitionId) -> bool:
        return self.names.requests(partition.lane, partition.pool) in self.control.paused

    def new_consumer_name(self) -> str:
        return f"memory-{next(self._names)}"

    # ---------------------------------------------------------------------------------- plain topics

    def topic(self, name: str) -> Topic:
        """A topic outside the lanes (results, replies, dead letters); made at its first use."""
        return self.topics.setdefault(name, Topic())

    def append(self, topic: Topic, record: Record) -> int:
        """An acknowledged produce outside transactions. Nothing fences it: it stores a zombie's, too."""
        offset = topic.append(record)
        self.notify()
        return offset

    # -------------------------------------------------------------------------- commits, transactions

    def commit(self, member: str, generation: int, partition: Partition, committed: Committed) -> Fencing:
        """A plain offset commit, fenced by the group."""
        fencing = self.group.fencing(member, generation)
        if fencing is Fencing.ACCEPTED:
            partition.committed = committed
        return fencing

    def commit_delays(
        self, member: str, generation: int, partition: Partition, committed: Committed
    ) -> Fencing:
        """The same for the delay topic."""
        fencing = self.group.fencing(member, generation)
        if fencing is Fencing.ACCEPTED:
            partition.delays_committed = committed
        return fencing

    def begin(self, member: str, generation: int, transaction: Transaction) -> Fencing:
        """Sends lines and offsets. The group fences here, and not again at the end of the transaction."""
        fencing = self.group.fencing(member, generation)
        if fencing is Fencing.ACCEPTED:
            self.abort_open(transaction.partition.id)
            self._open[transaction.partition.id] = transaction
        return fencing

    def end(self, transaction: Transaction) -> bool:
        """Commits, unless the transaction was aborted meanwhile by the next owner."""
        if transaction.aborted:
            return False
        assert self._open.pop(transaction.partition.id, None) is transaction, "two owners settle at once"
        transaction.partition.committed = transaction.committed
        for record in transaction.delays:
            transaction.partition.delays.append(replace(record, at_ms=self.clock.now_ms()))
        for name, record in transaction.records:
            self.topic(name).append(record)
        self.notify()
        return True

    def abort_open(self, partition: PartitionId) -> None:
        """Aborts what a dead owner left open (`init_transactions` under its id): offsets are stable then."""
        left = self._open.pop(partition, None)
        if left is not None:
            left.aborted = True

    # ----------------------------------------------------------------------------------------- waiting

    def notify(self) -> None:
        """Something happened that somebody may wait for."""
        self.version += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self, seen: int, until_ms: int | None = None) -> None:
        """Returns once something happened after version `seen`, or the clock reached `until_ms`."""
        if self.version != seen:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waits: set[asyncio.Future[None]] = {waiter}
        if until_ms is not None:
            waits.add(asyncio.ensure_future(self.clock.sleep_until(until_ms)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiters.discard(waiter)
            for wait in waits:
                wait.cancel()

    def next_due_ms(self) -> int | None:
        """When time alone will change something: a member lapses, or a delivery's delay is over."""
        now = self.clock.now_ms()
        times = [due_ms(r) for p in self.partitions.values() for _, r in p.delayed()]
        lapse = self.group.next_lapse_ms()
        return min((t for t in [*times, *([] if lapse is None else [lapse])] if t > now), default=None)
