"""Topics as Kafka keeps them: append only, read by offset, never by key.

For each lane of a pool there is a request topic, and beside it, partition by partition, an events topic (the
logs of the requests that stand at the same index) and a delay topic (deliveries that wait for their time).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.broker.message import DEFAULT_POOL, Lane, RequestRef
from headrace.broker.names import POOL, Names


class PartitionId(NamedTuple):
    """One index of a lane's topics in a pool."""

    lane: Lane
    number: int
    pool: str = DEFAULT_POOL


@dataclass(frozen=True, slots=True)
class Record:
    """What a topic holds. `at_ms` is the broker's append time; a `value` of None is Kafka's null."""

    value: bytes | None
    at_ms: int
    key: str | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class Topic:
    """One partition of a topic. Offsets count from 0; `start` moves on when records are deleted."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self.start = 0

    @property
    def end(self) -> int:
        return len(self._records)

    def append(self, record: Record) -> int:
        """Returns the record's offset."""
        self._records.append(record)
        return self.end - 1

    def read(self, start: int = 0, end: int | None = None) -> Iterator[tuple[int, Record]]:
        """Records with their offsets, from `start` up to `end` (None: up to the end as it is now)."""
        stop = self.end if end is None else min(end, self.end)
        for offset in range(max(start, self.start), stop):
            yield offset, self._records[offset]

    def at(self, offset: int) -> Record:
        return self._records[offset]

    def delete_below(self, offset: int) -> None:
        """Kafka's `delete_records`."""
        self.start = max(self.start, min(offset, self.end))


@dataclass(frozen=True, slots=True)
class Committed:
    """What a group commits for a partition: an offset and, in the metadata, what no offset can say.

    All records below `base` are finished, and those in `beyond` (a bitmap tied to its base, in real life).
    `epoch` fences the events partition; whoever may commit may raise it, and nobody else. The restore
    offset of the real metadata is left out: a log in a test is short enough to be read from its start.
    """

    base: int = 0
    beyond: frozenset[int] = frozenset()
    epoch: int = 0

    def finished(self, offset: int) -> bool:
        return offset < self.base or offset in self.beyond

    def finish(self, offset: int) -> Committed:
        """The commit that follows once `offset` is done: the contiguous prefix moves, holes stay behind."""
        base, beyond = self.base, self.beyond | {offset}
        while base in beyond:
            base += 1
        return replace(self, base=base, beyond=frozenset(o for o in beyond if o >= base))


@dataclass(slots=True)
class Partition:
    """One index of a lane: its requests, their events, its delays, and what the group committed for both."""

    id: PartitionId
    requests: Topic = field(default_factory=Topic)
    events: Topic = field(default_factory=Topic)
    delays: Topic = field(default_factory=Topic)
    committed: Committed = Committed()
    delays_committed: Committed = Committed()

    def pending(self) -> Iterator[Record]:
        """Requests that are not finished, as everyone can see from the commit."""
        for offset, record in self.requests.read(self.committed.base):
            if not self.committed.finished(offset):
                yield record

    def delayed(self) -> Iterator[tuple[int, Record]]:
        """Deliveries that wait for their time."""
        for offset, record in self.delays.read(self.delays_committed.base):
            if not self.delays_committed.finished(offset):
                yield offset, record


def partition_number(ref: RequestRef, count: int) -> int:
    """Key to partition. CRC32 is what librdkafka and kcat use; Java's is murmur2."""
    return zlib.crc32(ref.request_id.encode()) % count


def position(names: Names, partition: PartitionId, offset: int) -> str:
    """ "topic/partition/offset" of a request record."""
    return f"{names.requests(partition.lane, partition.pool)}/{partition.number}/{offset}"


def parse_position(names: Names, text: str) -> tuple[PartitionId, int] | None:
    """The place a position names, or None for something else (an id of somebody's own)."""
    topic, _, rest = text.partition("/")
    number, _, offset = rest.partition("/")
    queue = _queue(names, topic)
    if queue is None or not (_is_number(number) and _is_number(offset)):
        return None
    return PartitionId(queue[0], int(number), queue[1]), int(offset)


def _queue(names: Names, topic: str) -> tuple[Lane, str] | None:
    """Lane and pool of a request topic."""
    for lane in Lane:
        pool = topic.removeprefix(f"{names.prefix}.requests.").removesuffix(f".{lane.value}")
        if topic == names.requests(lane):
            return lane, DEFAULT_POOL
        if POOL.fullmatch(pool) and topic == names.requests(lane, pool):
            return lane, pool
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
