"""Deliveries that wait: one topic for each length of delay, so that each partition is first in, first out.

Whoever owns a partition of a delay topic forwards what is due to the request topic, at the same index: an
acknowledged plain publish first, completed after. Who dies between them leaves a copy, which opens as a twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafka.structs import TopicPartition

from headrace.broker.kafka.buffer import Buffer
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import (
    Record,
    Undecodable,
    dead_letter_record,
    decode_record,
    due_ms,
    forwarded_headers,
    size_of,
)
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rhythm import Rhythm
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.names import Names

_AT_ONCE = 200  # forwarded in one go


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery whose time has come: what to publish, or the letter of one that cannot be."""

    offset: int
    forward: Record | None
    letter: Record | None


@dataclass(eq=False, slots=True)
class DelayTenure:
    """An owner's time with a partition of a delay topic. `rhythm`: when it is read."""

    topics: LaneTopics
    partition: TopicPartition
    names: Names
    committed: Committed
    member: str
    rhythm: Rhythm
    gone: bool = False
    busy: bool = False  # something of it is being forwarded
    buffer: Buffer = field(init=False)
    _base: int = field(init=False)

    def __post_init__(self) -> None:
        self._base = self.committed.base
        self.buffer = Buffer(self._base)

    def fetched(self, records: Iterable[ConsumerRecord]) -> None:
        self.buffer.add(records)

    def next_due_ms(self) -> int | None:
        """When the next one is due, by the broker's clock; None while none waits, or some are on the way."""
        return due_ms(self.buffer.first) if self.buffer and not self.busy else None

    def due(self, now_ms: int, most_bytes: int) -> list[Due]:
        """Those at the head whose time has come; they stay until `finish`. Foreign clients may have written
        more than can be sent on, `most_bytes`: that is buried, or nothing behind it would ever go."""
        found: list[Due] = []
        for record in self.buffer:
            if due_ms(record) > now_ms or len(found) == _AT_ONCE:
                break
            found.append(self._due(record, most_bytes))
        return found

    def commit(self, also: Sequence[int] = ()) -> Committed:
        return Committed(max([self._base, *(offset + 1 for offset in also)]))

    def finish(self, offsets: Sequence[int]) -> None:
        self._base = self.commit(offsets).base
        while self.buffer and self.buffer.first.offset < self._base:
            self.buffer.drop()

    def _due(self, record: ConsumerRecord, most_bytes: int) -> Due:
        place = LogPlace(self.topics.lane, self.topics.pool, self.partition.partition)
        decoded = decode_record(record, place, self.names)
        if isinstance(decoded, Undecodable):
            return self._buried(record, decoded.reason)
        headers = forwarded_headers(record, decoded)
        number = self.partition.partition
        forward = Record(self.topics.requests, record.value, record.key, headers, number)
        if (size := size_of(forward)) > most_bytes:
            return self._buried(record, f"{size} bytes are more than the {most_bytes} that can be sent on")
        return Due(record.offset, forward, None)

    def _buried(self, record: ConsumerRecord, reason: str) -> Due:
        origin = f"{self.partition.topic}/{self.partition.partition}/{record.offset}"
        return Due(record.offset, None, dead_letter_record(record, origin, reason, self.names))
