"""Messages as Kafka records and back; nobody above sees a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.broker.message import DEFAULT_TENANT, JSON, Message, RequestRef
from headrace.broker.names import Names
from tests.support.memory_topics import PartitionId, Record, position

_OURS = frozenset({"request-id", "lane", "tenant", "content-type", "deadline", "reply-to", "stream"})
# Added when a delivery is forwarded from a delay topic: where and when it was first published.
POSITION, PUBLISHED, DUE, REASON = (
    "headrace-position",
    "headrace-published",
    "headrace-due",
    "headrace-reason",
)
_INTERNAL = frozenset({POSITION, PUBLISHED, DUE, REASON})


@dataclass(frozen=True, slots=True)
class Decoded:
    """A record understood. `forwarded`: it came by way of a delay topic."""

    message: Message
    ref: RequestRef
    position: str
    published_ms: int
    forwarded: bool


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Why a record is no message."""

    reason: str


def encode_message(message: Message, at_ms: int) -> Record:
    """The record of a first publish."""
    headers = dict(message.headers)
    headers |= {"lane": message.lane.value, "content-type": message.content_type}
    if message.request_id is not None:
        headers["request-id"] = message.request_id
    if message.tenant != DEFAULT_TENANT:
        headers["tenant"] = message.tenant
    if message.deadline_ms is not None:
        headers["deadline"] = str(message.deadline_ms)
    if message.reply_to is not None:
        headers["reply-to"] = message.reply_to
    if message.stream:
        headers["stream"] = "true"
    encoded = {name: value.encode() for name, value in headers.items()}
    return Record(message.body, at_ms, message.request_id, encoded)


def decode_record(record: Record, partition: PartitionId, offset: int, names: Names) -> Decoded | Undecodable:
    """A request record as a message; its lane is that of the topic it stands in, whatever a header says."""
    if record.value is None:
        return Undecodable("the record has no value")
    try:
        headers = {name: value.decode() for name, value in record.headers.items()}
    except UnicodeDecodeError:
        return Undecodable("a header is not UTF-8")
    try:
        deadline_ms = int(headers["deadline"]) if "deadline" in headers else None
        published_ms = int(headers.get(PUBLISHED, record.at_ms))
    except ValueError:
        return Undecodable("the header deadline is no number of milliseconds")
    reply_to = headers.get("reply-to")
    if reply_to is not None and not names.reply_allowed(reply_to):
        return Undecodable("the header reply-to names a topic that is not allowed")
    message = Message(
        body=record.value,
        request_id=headers.get("request-id"),
        lane=partition.lane,
        tenant=headers.get("tenant", DEFAULT_TENANT),
        content_type=headers.get("content-type", JSON),
        deadline_ms=deadline_ms,
        reply_to=reply_to,
        stream=headers.get("stream") == "true",
        headers=_travelling(headers),
    )
    where = headers.get(POSITION, position(names, partition, offset))
    ref = RequestRef(message.request_id or where, message.tenant)
    return Decoded(message, ref, where, published_ms, POSITION in headers)


def delayed_record(
    record: Record, decoded_position: str, published_ms: int, due_ms: int, reason: str
) -> Record:
    """The same message on its way through a delay topic: its position and time of publish stay with it."""
    added = {
        POSITION: decoded_position.encode(),
        PUBLISHED: str(published_ms).encode(),
        DUE: str(due_ms).encode(),
        REASON: reason.encode(),
    }
    return Record(record.value, record.at_ms, record.key, {**record.headers, **added})


def due_ms(record: Record) -> int:
    return int(record.headers[DUE])


def result_headers(message: Message, ref: RequestRef) -> dict[str, str]:
    """What a result line carries: the identity, and all headers that are not ours."""
    tenant = {"tenant": ref.tenant} if ref.tenant else {}
    return {**message.headers, **tenant, "request-id": ref.request_id}


def log_key(ref: RequestRef) -> str:
    """Key of a request's records in its events partition."""
    return f"{ref.tenant}/{ref.request_id}"


def _travelling(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OURS | _INTERNAL}
