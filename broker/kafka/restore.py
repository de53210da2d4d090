"""Taking partitions over: what stands in the group, a higher epoch, a fence, and then the log up to it.

    committed ─► commit(epoch + 1) ─► fence(epoch + 1) ─► acknowledged ─► read [restore, fence) ─► tenure
        ▲                                                                     │ an epoch as high stands there:
        └── stable: no open transaction                        commit and fence again above it, read again

The order is the protocol. The commit is fenced by the group, so no two owners ever hold the same epoch; it is
a plain one, so that the name under which this owner will settle stands there before its first transaction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import kafka.errors as ke
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Fence
from headrace.broker.kafka.bridge import resolve, tell
from headrace.broker.kafka.clients import Clients, ConsumerRecord, ConsumerThread
from headrace.broker.kafka.clock import local_ms
from headrace.broker.kafka.commits import Committed, decode_metadata, encode_metadata
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.leftovers import OPEN_S, Leftovers
from headrace.broker.kafka.owner_thread import OwnerThread
from headrace.broker.kafka.publisher import Publisher
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.names import Names

logger = logging.getLogger(__name__)

T = TypeVar("T")

_STABLE_MS = int(OPEN_S * 1000)
_AGAIN_S = 0.02
_POLL_MS = 50
_READ_S = 30.0
_COMMIT_S = 2.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition: its first record, and the one that will come next."""

    start: int
    end: int


class GroupReader:
    """Reads what a group holds, and whole stretches of partitions. A member of nothing."""

    def __init__(self, clients: Clients, group: str) -> None:
        self._clients, self._group = clients, group
        self._thread: ConsumerThread | None = None
        self._lock = asyncio.Lock()
        self.leftovers = Leftovers(clients)

    async def start(self) -> None:
        # Only this level of isolation asks for stable offsets.
        self._thread = await self._clients.consumer(
            group_id=self._group, isolation_level="read_committed", fetch_max_wait_ms=_POLL_MS
        )

    async def close(self) -> None:
        await self.leftovers.close()
        if self._thread is not None:
            await self._thread.close()

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Committed]:
        """What the group holds, without those it has never heard of. Ends transactions that a dead owner
        left open, and waits for those that are just ending."""
        async with self._lock:
            while True:
                found = await self._call(lambda consumer: _stable(consumer, partitions))
                if found is not None:
                    return _decoded(found)
                await self._end_open_transactions(partitions)

    async def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Of each partition."""

        def ask(consumer: KafkaConsumer) -> dict[TopicPartition, Bounds]:
            starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            return {partition: Bounds(starts[partition], ends[partition]) for partition in partitions}

        return await self._call(ask)

    async def read(
        self, stretches: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records from `start` on and below `end`, of each partition."""
        wanted = {partition: s for partition, s in stretches.items() if s.start < s.end}
        if not wanted:
            return {partition: [] for partition in stretches}
        async with self._lock:
            read = await self._call(lambda consumer: _read(consumer, wanted))
        return {partition: read.get(partition, []) for partition in stretches}

    async def _end_open_transactions(self, partitions: Sequence[TopicPartition]) -> None:
        """Under the names in the metadata; those are read without asking for stable offsets."""
        offsets = await self._clients.admin(
            lambda admin: admin.list_group_offsets({self._group: list(partitions)})
        )
        held = _decoded({p: o for p, o in offsets[self._group].items() if o.offset >= 0})
        for name in {committed.transactional_id for committed in held.values()} - {""}:
            await self.leftovers.end(name)

    async def _call(self, call: Callable[[KafkaConsumer], T]) -> T:
        assert self._thread is not None, "not started"
        return await self._thread.call(call)


def _stable(
    consumer: KafkaConsumer, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata] | None:
    """All in one request; the public `committed` makes one for each partition."""
    try:
        found: dict[TopicPartition, OffsetAndMetadata] = consumer._coordinator.fetch_committed_offsets(
            list(partitions), timeout_ms=_STABLE_MS
        )
    except ke.KafkaTimeoutError:
        return None
    return found


def _decoded(found: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Committed]:
    return {partition: decode_metadata(held.offset, held.metadata) for partition, held in found.items()}


def _read(
    consumer: KafkaConsumer, stretches: Mapping[TopicPartition, Bounds]
) -> dict[TopicPartition, list[ConsumerRecord]]:
    consumer.assign(list(stretches))
    for partition, stretch in stretches.items():
        consumer.seek(partition, stretch.start)
    left = set(stretches)
    read: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in stretches}
    deadline = time.monotonic() + _READ_S
    while left:
        if time.monotonic() > deadline:
            raise ke.KafkaTimeoutError(f"reading {sorted(left)} takes too long")
        for partition, records in consumer.poll(timeout_ms=_POLL_MS, max_records=5_000).items():
            read[partition] += [record for record in records if record.offset < stretches[partition].end]
        done = {partition for partition in left if consumer.position(partition) >= stretches[partition].end}
        consumer.pause(*done)
        left -= done
    consumer.unsubscribe()
    return read


@dataclass(eq=False, slots=True)
class _Taking:
    """A partition on its way to a tenure."""

    topics: LaneTopics
    number: int
    committed: Committed = field(default_factory=Committed)
    end: int = 0
    log_start: int = 0
    fence: int = -1

    @property
    def requests(self) -> TopicPartition:
        return TopicPartition(self.topics.requests, self.number)

    @property
    def events(self) -> TopicPartition:
        return TopicPartition(self.topics.events, self.number)


class Restorer:
    """Makes tenures of partitions that were assigned."""

    def __init__(
        self,
        reader: GroupReader,
        publisher: Publisher,
        owner: OwnerThread,
        names: Names,
        transactional_id: str,
    ) -> None:
        self._reader, self._publisher, self._owner = reader, publisher, owner
        self._names, self._transactional_id = names, transactional_id

    async def restore(
        self,
        requests: Sequence[tuple[LaneTopics, int]],
        delays: Sequence[TopicPartition],
        member: str,
        turn: int,
    ) -> tuple[list[Tenure], dict[TopicPartition, Committed]]:
        """Tenures of request partitions, and where partitions of delay topics, which have no logs, stand.
        `turn`: that of their assignment. Waits for as long as it takes; who loses all of them cancels it."""
        left, starts = await self._look(requests, delays)
        tenures: list[Tenure] = []
        waiting = dict(starts)  # for the first commit
        while left or waiting:
            for one in left:
                one.committed = replace(one.committed, epoch=one.committed.epoch + 1)
            kept = await self.commit({one.requests: one.committed for one in left} | waiting, member, turn)
            starts = {p: start for p, start in starts.items() if p in kept or p not in waiting}
            waiting = {}
            left = [one for one in left if one.requests in kept]
            await self._fence(left)
            logs = await self._read(left)
            fenced = [one for one in left if logs[one.requests].highest < one.committed.epoch]
            tenures += [self._tenure(one, logs[one.requests], member) for one in fenced]
            left = [one for one in left if one not in fenced]
            for one in left:  # metadata was lost: take an epoch that is really higher
                one.committed = replace(one.committed, epoch=logs[one.requests].highest)
        return tenures, starts

    async def commit(
        self, commits: Mapping[TopicPartition, Committed], member: str, turn: int
    ) -> frozenset[TopicPartition]:
        """A plain commit by the owner thread, of those partitions that are still ours; answers which these
        are."""
        offsets = {
            partition: OffsetAndMetadata(
                committed.base,
                encode_metadata(replace(committed, transactional_id=self._transactional_id)),
                -1,
            )
            for partition, committed in commits.items()
        }
        while True:
            kept = await self._commit_once(offsets, member, turn)
            if kept is not None:
                return kept
            await asyncio.sleep(_AGAIN_S)

    async def _commit_once(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: str, turn: int
    ) -> frozenset[TopicPartition] | None:
        """None: it has to be tried again, if we are still there by then."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[frozenset[TopicPartition] | None] = loop.create_future()

        def commit(consumer: KafkaConsumer) -> None:
            # What was revoked meanwhile is, or was, somebody else's: the group would take our commit all the
            # same, and forget what they finished.
            kept = self._owner.ours(offsets, turn)
            if not kept:
                tell(loop, resolve, done, kept)
                return
            sent = consumer.commit_async({partition: offsets[partition] for partition in kept})
            sent.add_callback(lambda _: tell(loop, resolve, done, kept))
            sent.add_errback(lambda _: tell(loop, resolve, done, None))

        self._owner.do(member, commit)
        finished, _ = await asyncio.wait({done}, timeout=_COMMIT_S)
        return done.result() if finished else None

    async def _look(
        self, requests: Sequence[tuple[LaneTopics, int]], delays: Sequence[TopicPartition]
    ) -> tuple[list[_Taking], dict[TopicPartition, Committed]]:
        taking = [_Taking(topics, number) for topics, number in requests]
        ours = [*(one.requests for one in taking), *delays]
        while True:
            try:
                committed = await self._reader.committed(ours)
                bounds = await self._reader.bounds([*ours, *(one.events for one in taking)])
                break
            except BrokerUnavailable as error:
                logger.debug("taking partitions over is repeated: %s", error)
                await asyncio.sleep(_AGAIN_S)
        starts = {}
        for partition in ours:
            held = committed.get(partition, Committed())
            # Not below the first record: nothing was committed yet, or somebody has trimmed by hand.
            starts[partition] = replace(held, base=max(held.base, bounds[partition].start))
        for one in taking:
            one.committed, one.end = starts[one.requests], bounds[one.requests].end
            one.log_start = bounds[one.events].start
        former = {held.transactional_id for held in committed.values()}
        self._reader.leftovers.look_after(former - {"", self._transactional_id})
        return taking, {partition: starts[partition] for partition in delays}

    async def _fence(self, taking: Sequence[_Taking]) -> None:
        records = [
            encode_event_record(one.topics.events, one.number, None, Fence(one.committed.epoch))
            for one in taking
        ]
        while True:
            try:
                acknowledged = await self._publisher.send(records)
                break
            except BrokerUnavailable as error:
                logger.debug("a fence is repeated: %s", error)
                await asyncio.sleep(_AGAIN_S)
        for one, answer in zip(taking, acknowledged, strict=True):
            one.fence = answer.offset

    async def _read(self, taking: Sequence[_Taking]) -> dict[TopicPartition, PartitionLogs]:
        stretches = {
            one.events: Bounds(max(one.committed.restore, one.log_start), one.fence) for one in taking
        }
        while True:
            try:
                read = await self._reader.read(stretches)
                break
            except BrokerUnavailable as error:
                logger.debug("a restore is repeated: %s", error)
                await asyncio.sleep(_AGAIN_S)
        now_ms, found = local_ms(), {}
        for one in taking:
            logs = PartitionLogs(stretches[one.events].start)
            for record in read[one.events]:
                logs.read(record, now_ms)
            found[one.requests] = logs
        return found

    def _tenure(self, taking: _Taking, logs: PartitionLogs, member: str) -> Tenure:
        logs.fence(taking.committed.epoch, taking.fence)
        tenure = Tenure(
            taking.topics,
            taking.number,
            self._names,
            taking.committed.epoch,
            taking.committed,
            logs,
            taking.end,
            member,
            local_ms(),
        )
        tenure.tidy()
        return tenure
