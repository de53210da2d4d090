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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Fence
from headrace.broker.kafka.bridge import resolve, tell
from headrace.broker.kafka.clock import steady_ms
from headrace.broker.kafka.commits import Committed, encode_metadata
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.group_reader import Bounds, GroupReader
from headrace.broker.kafka.owner_thread import OwnerThread
from headrace.broker.kafka.publisher import Publisher
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.names import Names

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 0.02
_TOGETHER_S = 10.0  # longer than a leader takes to move
_COMMIT_S = 2.0


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
        most_bytes: int,
    ) -> None:
        self._reader, self._publisher, self._owner = reader, publisher, owner
        self._names, self._transactional_id, self._most_bytes = names, transactional_id, most_bytes

    async def restore(
        self,
        requests: Sequence[tuple[LaneTopics, int]],
        delays: Sequence[TopicPartition],
        member: str,
        turn: int,
    ) -> tuple[list[Tenure], dict[TopicPartition, Committed]]:
        """Tenures of request partitions, and where partitions of delay topics, which have no logs, stand.
        `turn`: that of their assignment. Waits for as long as it takes; who loses all of them cancels it.
        Raises BrokerUnavailable where that is long and they are more than one: they are to be taken apart."""
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

        async def once() -> frozenset[TopicPartition]:
            kept = await self._commit_once(offsets, member, turn)
            if kept is None:
                raise BrokerUnavailable("a commit was refused, or not answered")
            return kept

        return await _insist(once, len(offsets))

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
            # `commit_async` answers, where the coordinator is unknown, once that is found, and sends it only
            # then: the commit may be refused, or come after our first transaction and undo that.
            ours = {partition: offsets[partition] for partition in kept}
            sent = consumer._coordinator._do_commit_offsets_async(ours)
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

        async def look() -> tuple[dict[TopicPartition, Committed], dict[TopicPartition, Bounds]]:
            committed = await self._reader.committed(ours)
            return committed, await self._reader.bounds([*ours, *(one.events for one in taking)])

        committed, bounds = await _insist(look, len(ours))
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
        acknowledged = await _insist(lambda: self._publisher.send(records), len(records))
        for one, answer in zip(taking, acknowledged, strict=True):
            one.fence = answer.offset

    async def _read(self, taking: Sequence[_Taking]) -> dict[TopicPartition, PartitionLogs]:
        stretches = {
            one.events: Bounds(max(one.committed.restore, one.log_start), one.fence) for one in taking
        }
        read = await _insist(lambda: self._reader.read(stretches), len(stretches))
        now_ms, found = steady_ms(), {}
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
            steady_ms(),
            most_bytes=self._most_bytes,
        )
        tenure.tidy()
        return tenure


async def _insist(call: Callable[[], Awaitable[T]], partitions: int) -> T:
    """Repeats what the broker cannot do at the moment: for ever, of one partition alone; of more, until it is
    likely that some of them keep the others waiting."""
    until = time.monotonic() + _TOGETHER_S
    while True:
        try:
            return await call()
        except BrokerUnavailable as error:
            if partitions > 1 and time.monotonic() > until:
                raise
            logger.debug("taking partitions over is repeated: %s", error)
            await asyncio.sleep(_AGAIN_S)
