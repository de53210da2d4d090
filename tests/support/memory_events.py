"""A request's log inside an events partition that it shares with others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.broker.events import Event
from headrace.broker.fold import Fold
from headrace.broker.wire import decode_event, encode_event
from tests.support.memory_topics import Record, Topic

_CARRIER, _LINE, _DEAD_LETTER = "headrace-carrier", "headrace-line", "headrace-dead-letter"
_MOVES, _BODY_HASH = "headrace-moves", "headrace-body-hash"


@dataclass(frozen=True, slots=True)
class Closing:
    """What stands beside a terminal record, so that whoever owns the partition can complete its settlement.

    Events are appended outside transactions (an open transaction would stall their readers), so an owner can
    die between the terminal record and the transaction that emits the result line. Its successor then finds
    the line here. `carrier` is the offset of the request record whose completion emits it: that record comes
    again exactly as long as the transaction has not happened, hence exactly one line, whatever the twins do.
    """

    carrier: int
    line: bytes | None
    dead_letter: str | None


@dataclass(frozen=True, slots=True)
class Departure:
    """What stands beside `moved`, so that whoever owns the partition can complete the move.

    An owner can die between the event and the publish to the other pool: readers have gone there, so its
    successor must hand over the very record (`carrier`). Any other record of the request that moved less
    often than the event says is a twin of one that is elsewhere; one that moved as often has come back.
    """

    carrier: int
    moves: int
    body_hash: bytes


Beside: TypeAlias = Closing | Departure | None


@dataclass(slots=True)
class LogState:
    """The fold of a request's log, the closing beside its terminal record, and the departure beside its last
    `moved`."""

    fold: Fold = field(default_factory=Fold)
    closing: Closing | None = None
    departure: Departure | None = None

    def read(self, event: Event, beside: Beside) -> None:
        if not self.fold.read(event):
            return
        if isinstance(beside, Closing):
            self.closing = beside
        elif isinstance(beside, Departure):
            self.departure = beside


def event_record(key: str | None, event: Event, at_ms: int, beside: Beside = None) -> Record:
    """`key` is that of the request; None for a fence of the whole partition."""
    headers: dict[str, bytes] = {}
    if isinstance(beside, Departure):
        headers[_CARRIER] = str(beside.carrier).encode()
        headers[_MOVES], headers[_BODY_HASH] = str(beside.moves).encode(), beside.body_hash
    closing = beside if isinstance(beside, Closing) else None
    if closing is not None:
        headers[_CARRIER] = str(closing.carrier).encode()
        if closing.line is not None:
            headers[_LINE] = closing.line
        if closing.dead_letter is not None:
            headers[_DEAD_LETTER] = closing.dead_letter.encode()
    return Record(encode_event(event, key or ""), at_ms, key, headers)


def read_events(topic: Topic, key: str, start: int, end: int) -> Iterator[tuple[int, Event, Beside]]:
    """The events of one request among all: its own, and the fences of the partition."""
    for offset, record in topic.read(start, end):
        if record.key in (key, None):
            assert record.value is not None
            yield offset, decode_event(record.value), _beside(record)


def restore(topic: Topic, key: str, end: int) -> LogState:
    """Folds what stands below offset `end`."""
    state = LogState()
    for _, event, beside in read_events(topic, key, 0, end):
        state.read(event, beside)
    return state


def highest_epoch(topic: Topic, end: int) -> int:
    """The highest epoch of a partition-wide fence or of any event below `end`."""
    return max((decode_event(r.value).epoch for _, r in topic.read(0, end) if r.value is not None), default=0)


def _beside(record: Record) -> Beside:
    if _CARRIER not in record.headers:
        return None
    if _MOVES in record.headers:
        moves, body_hash = int(record.headers[_MOVES]), record.headers[_BODY_HASH]
        return Departure(int(record.headers[_CARRIER]), moves, body_hash)
    dead_letter = record.headers.get(_DEAD_LETTER)
    return Closing(
        carrier=int(record.headers[_CARRIER]),
        line=record.headers.get(_LINE),
        dead_letter=None if dead_letter is None else dead_letter.decode(),
    )
