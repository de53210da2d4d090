"""Messages as Kafka records and back; nobody above sees a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.broker.message import DEFAULT_TENANT, JSON, Claim, Message, RequestRef
from headrace.broker.names import Names
from tests.support.memory_topics import PartitionId, Record, position

_CLAIM, _CLAIM_HASH, _CLAIM_SIZE = "headrace-claim", "headrace-claim-hash", "headrace-claim-size"
_OURS = frozenset(
    {"request-id", "lane", "tenant", "content-type", "deadline", "queue-timeout", "reply-to", "stream"}
    | {_CLAIM, _CLAIM_HASH, _CLAIM_SIZE}
)
# Added when a delivery is forwarded, from a delay topic or to another pool: where and when it was first
# published, and how often it moved to another pool.
POSITION, PUBLISHED, MOVES = "headrace-position", "headrace-published", "headrace-moves"
DUE, REASON, ORIGIN = "headrace-due", "headrace-reason", "headrace-origin"
KIND, CHUNK = "headrace-kind", "chunk"
_INTERNAL = frozenset({POSITION, PUBLISHED, MOVES, DUE, REASON, ORIGIN, KIND})


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
    if message.queue_timeout_ms is not None:
        headers["queue-timeout"] = str(message.queue_timeout_ms)
    if message.claim is not None:
        claim = message.claim
        headers |= {_CLAIM: claim.address, _CLAIM_HASH: claim.body_hash.hex(), _CLAIM_SIZE: str(claim.size)}
    if message.reply_to is not None:
        headers["reply-to"] = message.reply_to
    if message.stream:
        headers["stream"] = "true"
    encoded = {name: value.encode() for name, value in headers.items()}
    return Record(message.body, at_ms, message.request_id, encoded)


def decode_record(record: Record, partition: PartitionId, offset: int, names: Names) -> Decoded | Undecodable:
    """A request record as a message; lane and pool are those of the topic, whatever a header says."""
    if record.value is None:
        return Undecodable("the record has no value")
    try:
        headers = {name: value.decode() for name, value in record.headers.items()}
    except UnicodeDecodeError:
        return Undecodable("a header is not UTF-8")
    try:
        deadline_ms = int(headers["deadline"]) if "deadline" in headers else None
        queue_timeout_ms = int(headers["queue-timeout"]) if "queue-timeout" in headers else None
        claim = _claim(headers, record.value)
        published_ms = int(headers.get(PUBLISHED, record.at_ms))
    except ValueError:
        return Undecodable("a header that holds a number, or a claim, holds something else")
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
        pool=partition.pool,
        queue_timeout_ms=queue_timeout_ms,
        claim=claim,
    )
    where = headers.get(POSITION, position(names, partition, offset))
    ref = RequestRef(message.request_id or where, message.tenant)
    return Decoded(message, ref, where, published_ms, POSITION in headers)


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
    return replace(record, headers={k: v for k, v in record.headers.items() if k not in _INTERNAL})


def due_ms(record: Record) -> int:
    return int(record.headers[DUE])


def result_headers(message: Message, ref: RequestRef) -> dict[str, str]:
    """What a result line carries: the identity, and all headers that are not ours."""
    tenant = {"tenant": ref.tenant} if ref.tenant else {}
    return {**message.headers, **tenant, "request-id": ref.request_id}


def log_key(ref: RequestRef) -> str:
    """Key of a request's records in its events partition."""
    return f"{ref.tenant}/{ref.request_id}"


def _claim(headers: Mapping[str, str], body: bytes) -> Claim | None:
    """Raises ValueError for half a claim, and for one with a body beside it."""
    if not {_CLAIM, _CLAIM_HASH, _CLAIM_SIZE} & headers.keys():
        return None
    address, size = headers.get(_CLAIM, ""), int(headers.get(_CLAIM_SIZE, ""))
    body_hash = bytes.fromhex(headers.get(_CLAIM_HASH, ""))
    if body or not address or len(body_hash) != 32:
        raise ValueError("half a claim")
    return Claim(address, body_hash, size)


def _travelling(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in _OURS | _INTERNAL}
