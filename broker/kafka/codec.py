"""Records to messages and back; nobody above sees a header.

The value is the body, the headers are those of `broker/headers.py`. So
`kcat -P -t headrace.requests.batch < lines.jsonl` is a whole producer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from headrace.broker.headers import MOST, Unreadable, encoded, number, publishable_headers, read_message, text
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.odd_headers import REPLACEMENT
from headrace.broker.kafka.places import LogPlace, Position, parse_position
from headrace.broker.message import Message, RequestRef
from headrace.broker.names import Names

Headers: TypeAlias = Sequence[tuple[str, bytes]]

# Added when a delivery is forwarded (delay topic, other pool): where and when it was first published.
POSITION, PUBLISHED = "headrace-position", "headrace-published"
MOVES = "headrace-moves"  # how often it went to another pool
# Added on its way through a delay topic only.
DUE, REASON = "headrace-due", "headrace-reason"
# Added to dead letters, which also bear REASON: the place of the record that was buried.
ORIGIN = "headrace-origin"
# And to those of records that had no value, which is not the same as an empty one.
NO_VALUE = "headrace-no-value"
_ADDED = frozenset((POSITION, PUBLISHED, MOVES, DUE, REASON))
_LONGEST_REASON = 4_096
KIND = "headrace-kind"  # on lines of a reply topic that are chunks of an answer


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be appended to a topic. `partition` None: any (topics with one)."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    partition: int | None = None

    def at(self, partition: int) -> Record:
        return replace(self, partition=partition)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A request record understood. `forwarded`: it is not the record of the first publish."""

    message: Message
    ref: RequestRef
    position: str
    published_ms: int
    forwarded: bool


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a record is no message."""

    reason: str


# --------------------------------------------------------------------------------------------- requests


def encode_message(message: Message, names: Names, partition: int) -> Record:
    """The record of a first publish. Raises BrokerError for what could not be read back."""
    headers = publishable_headers(message, names)
    for name in headers:
        encoded(name)
    return Record(
        names.requests(message.lane, message.pool),
        message.body,
        None if message.request_id is None else encoded(message.request_id),
        [(name, encoded(value)) for name, value in headers.items()],
        partition,
    )


def decode_record(
    record: ConsumerRecord, place: LogPlace, names: Names, most_bytes: int | None = None
) -> Decoded | Undecodable:
    """A record of a request topic, or of a delay topic, as a message of its lane and pool. `most_bytes`: of
    one that we did not send ourselves."""
    if record.value is None:
        return Undecodable("the record has no value")
    if most_bytes is not None and size_of(record) > most_bytes and POSITION not in dict(record.headers):
        return Undecodable(f"{size_of(record)} bytes are more than the {most_bytes} allowed")
    sent = len(record.headers) - len(_ADDED.intersection(name for name, _ in record.headers))
    if sent > MOST:
        return Undecodable(f"{sent} headers are more than the {MOST} allowed")
    try:
        headers = {_name(name): text(value) for name, value in record.headers}
        message = read_message(record.value, headers, place.lane, place.pool, names)
        position = _position(record, headers, place, names)
        published_ms = number(headers, PUBLISHED, "unix time in milliseconds")
    except Unreadable as error:
        return Undecodable(str(error))
    ref = RequestRef(message.request_id or position, message.tenant)
    at_ms = record.timestamp if published_ms is None else published_ms
    return Decoded(message, ref, position, at_ms, POSITION in headers)


def forwarded_headers(record: ConsumerRecord, decoded: Decoded) -> list[tuple[str, bytes]]:
    """Headers of a record that goes to a request topic again: position and time of publish stay with it."""
    kept = _without(record.headers, (POSITION, PUBLISHED, DUE, REASON))
    return [*kept, (POSITION, decoded.position.encode()), (PUBLISHED, b"%d" % decoded.published_ms)]


def delayed_headers(
    record: ConsumerRecord, decoded: Decoded, due_ms: int, reason: str
) -> list[tuple[str, bytes]]:
    """The same for a record that waits in a delay topic until `due_ms`."""
    added = [(DUE, b"%d" % due_ms), (REASON, reason.encode(errors="replace")[:_LONGEST_REASON])]
    return [*forwarded_headers(record, decoded), *added]


def due_ms(record: ConsumerRecord) -> int:
    """When a record of a delay topic is due; 0 (now) for one that does not say."""
    value = dict(record.headers).get(DUE, b"")
    return int(value) if value.isdigit() and len(value) <= 15 else 0


# ------------------------------------------------------------------------------- results, dead letters


def letter_head(letter: Record) -> Record:
    """A dead letter without the message: where it stood, and why it was buried."""
    return replace(letter, value=b"", headers=[h for h in letter.headers if h[0] in (ORIGIN, REASON)])


def result_record(message: Message, ref: RequestRef, line: bytes, names: Names) -> Record:
    """A line of a result topic: the request's identity, and all headers that are not ours."""
    return Record(
        message.reply_to or names.results,
        line,
        ref.request_id.encode(),
        result_headers(message, ref),
    )


def chunk_record(message: Message, ref: RequestRef, chunk: bytes) -> Record:
    """A part of an answer, for the message's reply topic; its kind tells it from result lines."""
    assert message.reply_to is not None, "chunks go to reply topics only"
    headers = [*result_headers(message, ref), (KIND, b"chunk")]
    return Record(message.reply_to, chunk, ref.request_id.encode(), headers)


def result_headers(message: Message, ref: RequestRef) -> list[tuple[str, bytes]]:
    tenant = {"tenant": ref.tenant} if ref.tenant else {}
    headers = {**message.headers, **tenant, "request-id": ref.request_id}
    return [(name, value.encode()) for name, value in headers.items()]


def dead_letter_record(record: ConsumerRecord, origin: str, reason: str, names: Names) -> Record:
    """The untouched record, why it was buried, and where it stood."""
    kept = _without(record.headers, (REASON, ORIGIN, NO_VALUE))
    added = [(ORIGIN, origin.encode()), (REASON, reason.encode(errors="replace")[:_LONGEST_REASON])]
    if record.value is None:
        added.append((NO_VALUE, b"true"))
    return Record(names.dead_letters, record.value or b"", record.key, [*kept, *added])


def readable_headers(headers: Headers) -> dict[str, str]:
    """Headers of whatever stands in a topic, for people."""
    return {name: (value or b"").decode(errors="replace") for name, value in headers}


def sent_headers(headers: Headers) -> list[tuple[str, bytes]]:
    """The headers that a buried message was published with."""
    return _without(headers, (REASON, ORIGIN, NO_VALUE, POSITION, PUBLISHED, MOVES, DUE))


def own_headers(headers: Headers) -> dict[str, str]:
    """The same, for people."""
    return readable_headers(sent_headers(headers))


def size_of(record: Record | ConsumerRecord) -> int:
    """Bytes that a record takes in its topic, about, as we send it: not compressed."""
    headers = sum(len(name.encode()) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + 100


# -------------------------------------------------------------------------------------------- headers


def _name(name: str) -> str:
    if REPLACEMENT in name:
        raise Unreadable(f"the name of a header is not UTF-8: {name[:40]!r}")
    return name


def _position(record: ConsumerRecord, headers: Mapping[str, str], place: LogPlace, names: Names) -> str:
    position = headers.get(POSITION)
    if position is None:
        return Position(place, record.offset).text(names)
    if parse_position(names, position) is None:
        raise Unreadable(f"the header `{POSITION}` is reserved for retries and holds no position")
    return position


def _without(headers: Headers, names: Iterable[str]) -> list[tuple[str, bytes]]:
    left_out = frozenset(names)
    return [(name, value or b"") for name, value in headers if name not in left_out]
