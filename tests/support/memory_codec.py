"""Messages as Kafka records and back; nobody above sees a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.broker.headers import (
    Unreadable,
    encoded,
    number,
    publishable_headers,
    read_message,
    text,
)
from headrace.broker.message import Message, RequestRef
from headrace.broker.names import Names
from tests.support.memory_topics import PartitionId, Record, position

# Added when a delivery is forwarded, from a delay topic or to another pool: where and when it was first
# published, and how often it moved to another pool.
POSITION, PUBLISHED, MOVES = "headrace-position", "headrace-published", "headrace-moves"
DUE, REASON, ORIGIN = "headrace-due", "headrace-reason", "headrace-origin"
KIND, CHUNK = "headrace-kind", "chunk"
_ADDED = frozenset({POSITION, PUBLISHED, MOVES, DUE, REASON, ORIGIN, KIND})


@dataclass(frozen=True, slots=True)
class Decoded:
    """A record understood. `forwarded`: it came by way of a delay topic, or from another pool."""

    message: Message
    ref: RequestRef
    position: str
    published_ms: int
    forwarded: bool


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a record is no message."""

    reason: str


def encode_message(message: Message, names: Names, at_ms: int) -> Record:
    """The record of a first publish. Raises BrokerError for what could not be read back."""
    headers = publishable_headers(message, names)
    return Record(
        message.body, at_ms, message.request_id, {name: encoded(value) for name, value in headers.items()}
    )


def decode_record(record: Record, partition: PartitionId, offset: int, names: Names) -> Decoded | Undecodable:
    """A request record as a message; lane and pool are those of the topic, whatever a header says."""
    if record.value is None:
        return Undecodable("the record has no value")
    try:
        headers = {name: text(value) for name, value in record.headers.items()}
        message = read_message(record.value, headers, partition.lane, partition.pool, names)
        published_ms = number(headers, PUBLISHED, "unix time in milliseconds")
    except Unreadable as error:
        return Undecodable(str(error))
    where = headers.get(POSITION, position(names, partition, offset))
    ref = RequestRef(message.request_id or where, message.tenant)
    at_ms = record.at_ms if published_ms is None else published_ms
    return Decoded(message, ref, where, at_ms, POSITION in headers)


def delayed_record(
    record: Record, decoded_position: str, published_ms: int, due_ms: int, reason: str
) -> Record:
    """The same message on its way through a delay topic: its position and time of publish stay with it."""
    added = {DUE: str(due_ms).encode(), REASON: reason.encode()}
    return _kept(record, decoded_position, published_ms, added)


def moved_record(record: Record, decoded_position: str, published_ms: int, moves: int) -> Record:
    """The same message on its way to another pool."""
    return _kept(record, decoded_position, published_ms, {MOVES: str(moves).encode()})


def _kept(record: Record, where: str, published_ms: int, added: Mapping[str, bytes]) -> Record:
    kept = {POSITION: where.encode(), PUBLISHED: str(published_ms).encode()}
    return Record(record.value, record.at_ms, record.key, {**record.headers, **kept, **added})


def moves(record: Record) -> int:
    return int(record.headers.get(MOVES, b"0"))


def sent_record(record: Record) -> Record:
    """As its publisher sent it: without what forwarding and dead-lettering added."""
    return replace(record, headers={k: v for k, v in record.headers.items() if k not in _ADDED})


def due_ms(record: Record) -> int:
    return int(record.headers[DUE])


def result_headers(message: Message, ref: RequestRef) -> dict[str, str]:
    """What a result line carries: the identity, and all headers that are not ours."""
    tenant = {"tenant": ref.tenant} if ref.tenant else {}
    return {**message.headers, **tenant, "request-id": ref.request_id}


def log_key(ref: RequestRef) -> str:
    """Key of a request's records in its events partition."""
    return f"{ref.tenant}/{ref.request_id}"
