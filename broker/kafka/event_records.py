"""A request's log inside an events partition that it shares with others.

The key of a record is the request's (`places.log_key`); a record without key is a fence of the whole
partition. Epochs count per partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker.errors import BrokerError
from headrace.broker.events import Event, Fence
from headrace.broker.fold import Fold
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.codec import Record
from headrace.broker.wire import decode_event, encode_event

_CARRIER, _LINE, _DEAD_LETTER = "headrace-carrier", "headrace-line", "headrace-dead-letter"


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


@dataclass(slots=True)
class LogState:
    """The fold of a request's log, and the closing beside its terminal record."""

    fold: Fold = field(default_factory=Fold)
    closing: Closing | None = None

    def read(self, event: Event, closing: Closing | None) -> None:
        if self.fold.read(event) and closing is not None:
            self.closing = closing


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A record of an events partition understood. `key`: None for a fence of the whole partition."""

    key: str | None
    event: Event
    closing: Closing | None
    offset: int


def encode_event_record(
    topic: str, partition: int, key: str | None, event: Event, closing: Closing | None = None
) -> Record:
    headers: list[tuple[str, bytes]] = []
    if closing is not None:
        headers.append((_CARRIER, b"%d" % closing.carrier))
        if closing.line is not None:
            headers.append((_LINE, closing.line))
        if closing.dead_letter is not None:
            headers.append((_DEAD_LETTER, closing.dead_letter.encode(errors="replace")))
    value = encode_event(event, key or "")
    return Record(topic, value, None if key is None else key.encode(), headers, partition)


def decode_event_record(record: ConsumerRecord) -> EventRecord | None:
    """None for a record that is no event of ours: somebody else's bytes in the topic end nobody's log."""
    try:
        key = None if record.key is None else record.key.decode()
        event = decode_event(record.value or b"")
        entry = EventRecord(key, event, _closing(record), record.offset)
    except (BrokerError, ValueError):
        return None
    return entry if key is not None or isinstance(event, Fence) else None


def _closing(record: ConsumerRecord) -> Closing | None:
    headers = dict(record.headers)
    if _CARRIER not in headers:
        return None
    dead_letter = headers.get(_DEAD_LETTER)
    return Closing(
        carrier=int(headers[_CARRIER]),
        line=headers.get(_LINE),
        dead_letter=None if dead_letter is None else dead_letter.decode(),
    )
