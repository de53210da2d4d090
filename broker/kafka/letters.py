"""Dead letters: read, put on their lanes again, removed.

A record in the middle of a topic cannot be removed, so one that is discarded is marked in the control topic;
what is discarded at the beginning of the topic is really deleted, and its marks with it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from kafka.structs import TopicPartition
from msgspec import structs

from headrace.broker.contract import DeadLettered
from headrace.broker.errors import BrokerError
from headrace.broker.ids import new_request_id
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import (
    NO_VALUE,
    ORIGIN,
    REASON,
    Undecodable,
    decode_record,
    own_headers,
    sent_headers,
)
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.places import parse_position
from headrace.broker.kafka.results import trim
from headrace.broker.message import Message

_COUNTED = 20_000  # more letters than these are not counted one by one
NEAR = 64  # offsets apart; what lies between is read, too
_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class _Sent:
    """A letter as the record that it was when it stood on its lane."""

    value: bytes | None
    headers: list[tuple[str, bytes]]
    offset: int
    timestamp: int


class DeadLetters:
    """The dead letters as one connection sees them."""

    def __init__(self, connection: Connection) -> None:
        self._at = connection
        self._partition = TopicPartition(connection.names.dead_letters, 0)

    async def latest(self, limit: int) -> list[DeadLettered]:
        """Oldest first."""
        start, end = await self._bounds()
        width = max(2 * limit, 64)  # marks of transactions take offsets, too
        while True:
            low = max(start, end - width)
            records = await self._records(low, end)
            if len(records) >= limit or low == start:
                return [self._letter(record) for record in records[-limit:]] if limit > 0 else []
            width *= 4

    async def each(self) -> AsyncGenerator[DeadLettered, None]:
        """Oldest first; those that come meanwhile are not among them."""
        async with contextlib.aclosing(self._pages(*await self._bounds())) as pages:
            async for page in pages:
                for record in page:
                    yield self._letter(record)

    async def one(self, position: str) -> DeadLettered | None:
        record = await self._record(position)
        return None if record is None else self._letter(record)

    async def count(self) -> int:
        start, end = await self._bounds()
        if end - start > _COUNTED:
            return end - start - len(self._at.control.state.discarded)
        return len(await self._records(start, end))

    async def again(self, position: str) -> Message | None:
        """The message of a letter under a new id, as it is to be published again."""
        record = await self._record(position)
        if record is None:
            return None
        headers = dict(record.headers)
        origin = parse_position(self._at.names, (headers.get(ORIGIN) or b"").decode(errors="replace"))
        if origin is None:
            raise BrokerError(f"{position} cannot be replayed: it does not say which lane it came from")
        value = None if NO_VALUE in headers else record.value
        sent = _Sent(value, sent_headers(record.headers), origin.offset, record.timestamp)
        decoded = decode_record(sent, origin.place, self._at.names)
        if isinstance(decoded, Undecodable):
            raise BrokerError(f"{position} cannot be replayed, since it is no message: {decoded.reason}")
        old = decoded.message
        travelling = {**old.headers, "replay-of": decoded.ref.request_id}
        new_id = new_request_id(old.lane, origin.place.partition, self._at.clock.now_ms())
        return structs.replace(old, request_id=new_id, headers=travelling)

    async def discard(self, positions: Sequence[str]) -> int:
        """Removes them; returns how many there were."""
        named = {offset for position in positions if (offset := self._offset(position)) is not None}
        start, end = await self._bounds()
        offsets = [
            record.offset
            for low, high in runs([offset for offset in sorted(named) if start <= offset < end])
            for record in await self._records(low, high)
            if record.offset in named
        ]
        await self._at.control.discard(offsets)
        await self._delete_prefix()
        return len(offsets)

    # --------------------------------------------------------------------------------------- reading

    async def _bounds(self) -> tuple[int, int]:
        await self._at.control.read_to_end()
        return (await self._at.committed.bounds([self._partition]))[self._partition]

    def _pages(self, start: int, end: int) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Those that are not discarded."""
        discarded = self._at.control.state.discarded
        return self._at.committed.scan(
            {self._partition: (start, end)}, lambda record: record.offset not in discarded
        )

    async def _records(self, start: int, end: int) -> list[ConsumerRecord]:
        return [record async for page in self._pages(start, end) for record in page]

    async def _record(self, position: str) -> ConsumerRecord | None:
        offset = self._offset(position)
        if offset is None:
            return None
        start, end = await self._bounds()
        found = await self._records(offset, offset + 1) if start <= offset < end else []
        return found[0] if found else None

    def _offset(self, position: str) -> int | None:
        topic, _, offset = position.rpartition("/")
        return int(offset) if topic == self._partition.topic and _NUMBER.fullmatch(offset) else None

    def _letter(self, record: ConsumerRecord) -> DeadLettered:
        headers = dict(record.headers)
        return DeadLettered(
            position=f"{record.topic}/{record.offset}",
            origin=(headers.get(ORIGIN) or b"").decode(errors="replace"),
            reason=(headers.get(REASON) or b"").decode(errors="replace"),
            body=record.value or b"",
            headers=own_headers(record.headers),
            at_ms=record.timestamp,
        )

    # -------------------------------------------------------------------------------------- deleting

    async def _delete_prefix(self) -> None:
        """Deletes what is discarded from the beginning on, so that neither letters nor marks pile up."""
        await self._at.control.read_to_end()
        discarded = self._at.control.state.discarded
        start, end = (await self._at.committed.bounds([self._partition]))[self._partition]
        kept = await self._at.committed.first(
            {self._partition: (start, end)}, lambda record: record.offset not in discarded
        )
        below = end if kept is None else kept.offset
        if below > start:
            await trim(self._at.clients, {self._partition: below})
        await self._at.control.forget_discarded([offset for offset in discarded if offset < below])


def runs(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Spans [from, to) that hold these offsets, which are sorted: neighbours are read in one go."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] <= NEAR:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans
