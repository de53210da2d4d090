"""Reads what a group holds, and stretches of partitions, beside the consumer that is a member of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import kafka.errors as ke
from kafka import KafkaConsumer
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from headrace.broker.kafka.clients import Clients, ConsumerRecord, ConsumerThread
from headrace.broker.kafka.commits import Committed, decode_metadata
from headrace.broker.kafka.leftovers import OPEN_S, Leftovers

T = TypeVar("T")

_LEVEL = "read_committed"  # only this one asks for stable offsets
_STABLE_MS = int(OPEN_S * 1000)
_POLL_MS = 50
_READ_S = 30.0  # without a record


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
        self._thread = await self._clients.consumer(
            group_id=self._group,
            isolation_level=_LEVEL,
            fetch_max_wait_ms=_POLL_MS,
            auto_offset_reset="earliest",  # what the broker has dropped by then, nobody needs any more
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
        """Of each partition. Not by the consumer, which fails with a KeyError where it knows no leader of one
        of them: at its first look at a topic, or while nodes come and go."""
        starts = await self._clients.offsets(partitions, OffsetSpec.EARLIEST, _LEVEL)
        ends = await self._clients.offsets(partitions, OffsetSpec.LATEST, _LEVEL)
        return {partition: Bounds(starts[partition], ends[partition]) for partition in partitions}

    async def read(
        self, stretches: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records from `start` on and below `end`, of each partition, as far as they are kept still."""
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
    """All in one request; the public `committed` makes one for each partition.

    kafka-python keeps a question that it gave up waiting for, and gives its answer to whoever asks the same
    the next time, however much later: what stood there then, before others owned the partitions.
    """
    consumer._coordinator._offset_fetch_futures.clear()
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
        consumer.resume(partition)  # a read that failed in its middle may have paused it
    left = set(stretches)
    read: dict[TopicPartition, list[ConsumerRecord]] = {partition: [] for partition in stretches}
    deadline = time.monotonic() + _READ_S
    while left:
        if time.monotonic() > deadline:
            raise ke.KafkaTimeoutError(f"reading {sorted(left)} takes too long")
        polled = consumer.poll(timeout_ms=_POLL_MS, max_records=5_000)
        for partition, records in polled.items():
            read[partition] += [record for record in records if record.offset < stretches[partition].end]
        if polled:  # a long stretch takes its time: begun anew, it would take as long again
            deadline = time.monotonic() + _READ_S
        done = {partition for partition in left if consumer.position(partition) >= stretches[partition].end}
        consumer.pause(*done)
        left -= done
    consumer.unsubscribe()
    return read
