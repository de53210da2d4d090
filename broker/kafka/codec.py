"""Records to messages and back; nobody above sees a header.

The value is the body. Headers, all optional for outside publishers: `request-id`, `deadline` (unix ms),
`tenant`, `reply-to`, `stream`, `content-type`, `queue-timeout` (ms); any other header travels through to the
result. Lane and pool are those of the topic the record stands in; a header `lane` is not believed. So
`kcat -P -t headrace.requests.batch < lines.jsonl` is a whole producer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from headrace.broker.errors import BrokerError, ReplyNotAllowed
from headrace.broker.headers import CLAIM, CLAIM_HASH, CLAIM_SIZE, message_headers
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.odd_headers import REPLACEMENT
from headrace.broker.kafka.places import LogPlace, Position, parse_position
from headrace.broker.message import JSON, Claim, Message, RequestRef
from headrace.broker.names import Names

Headers: TypeAlias = Sequence[tuple[str, bytes]]

_OURS = frozenset(
    {"request-id", "lane", "tenant", "content-type", "deadline", "reply-to", "stream", "queue-timeout"}
)
# Added when a delivery is forwarded (delay topic, other pool): where and when it was first published.
POSITION, PUBLISHED = "headrace-position", "headrace-published"
MOVES = "headrace-moves"  # how often it went to another pool
# Added on its way through a delay topic only.
DUE, REASON = "headrace-due", "headrace-reason"
# Added to dead letters, which also bear REASON: the place of the record that was buried.
ORIGIN = "headrace-origin"
# And to those of records that had no value, which is not the same as an empty one.
NO_VALUE = "headrace-no-value"
KIND = "headrace-kind"  # on lines of a reply topic that are chunks of an answer
_INTERNAL = frozenset(
    {KIND, CLAIM, CLAIM_HASH, CLAIM_SIZE, POSITION, PUBLISHED, MOVES, DUE, REASON, ORIGIN, NO_VALUE}
)

_NUMBER = re.compile(r"[0-9]{1,15}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_MOST_HEADERS = 256
_LONGEST_ID = 512


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


class _Wrong(Exception):
    """A header that makes no sense; the text says why."""


# --------------------------------------------------------------------------------------------- requests


def encode_message(message: Message, names: Names, partition: int) -> Record:
    """The record of a first publish. Raises BrokerError for what could not be read back."""
    headers = message_headers(message)
    _check(message, names, headers)
    for name in message.headers:
        _bytes(name)
    return Record(
        names.requests(message.lane, message.pool),
        message.body,
        None if message.request_id is None else _bytes(message.request_id),
        [(name, _bytes(value)) for name, value in {**headers, **message.headers}.items()],
        partition,
    )


def decode_record(record: ConsumerRecord, place: LogPlace, names: Names) -> Decoded | Undecodable:
    """A record of a request topic, or of a delay topic, as a message of its lane and pool."""
    if record.value is None:
        return Undecodable("the record has no value")
    if len(record.headers) > _MOST_HEADERS:
        return Undecodable(f"{len(record.headers)} headers are more than the {_MOST_HEADERS} allowed")
    try:
        headers = {_name(name): _text(value) for name, value in record.headers}
        message = _message(record.value, headers, place, names)
        position = _position(record, headers, place, names)
        published_ms = _milliseconds(headers, PUBLISHED)
    except _Wrong as wrong:
        return Undecodable(str(wrong))
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
    added = [(DUE, b"%d" % due_ms), (REASON, reason.encode(errors="replace"))]
    return [*forwarded_headers(record, decoded), *added]


def due_ms(record: ConsumerRecord) -> int:
    """When a record of a delay topic is due; 0 (now) for one that does not say."""
    value = dict(record.headers).get(DUE, b"")
    return int(value) if value.isdigit() and len(value) <= 15 else 0


# ------------------------------------------------------------------------------- results, dead letters


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
    added = [(ORIGIN, origin.encode()), (REASON, reason.encode(errors="replace"))]
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


def size_of(record: Record) -> int:
    """Bytes that a record takes in its topic, about."""
    headers = sum(len(name.encode()) + len(value) + 10 for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers + 100


# -------------------------------------------------------------------------------------------- headers


def _message(body: bytes, headers: Mapping[str, str], place: LogPlace, names: Names) -> Message:
    return Message(
        body=body,
        request_id=_request_id(headers),
        lane=place.lane,
        tenant=headers.get("tenant", ""),
        content_type=headers.get("content-type", JSON),
        deadline_ms=_milliseconds(headers, "deadline"),
        reply_to=_reply_to(headers, names),
        stream=_flag(headers),
        headers={name: value for name, value in headers.items() if name not in _OURS | _INTERNAL},
        pool=place.pool,
        queue_timeout_ms=_milliseconds(headers, "queue-timeout"),
        claim=_claim(headers, body),
    )


def _check(message: Message, names: Names, headers: Mapping[str, str]) -> None:
    taken = (_OURS | _INTERNAL) & message.headers.keys()
    if taken:
        raise BrokerError(f"a header may not be called `{min(taken)}`: the name is taken; choose another")
    if len(headers) + len(message.headers) > _MOST_HEADERS:
        raise BrokerError(f"more than {_MOST_HEADERS} headers in one message; send fewer")
    if message.reply_to is not None and not names.reply_allowed(message.reply_to):
        raise ReplyNotAllowed(_not_allowed(message.reply_to, names))
    try:
        _message(message.body, headers, LogPlace(message.lane, message.pool, 0), names)
    except _Wrong as wrong:
        raise BrokerError(f"this message cannot be published: {wrong}") from wrong


def _name(name: str) -> str:
    if REPLACEMENT in name:
        raise _Wrong(f"the name of a header is not UTF-8: {name[:40]!r}")
    return name


def _text(value: bytes | None) -> str:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError as error:
        raise _Wrong(f"a header is not UTF-8: {(value or b'')[:40]!r}") from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BrokerError(f"{text[:40]!r} holds half a character and cannot be sent") from error


def _request_id(headers: Mapping[str, str]) -> str | None:
    request_id = headers.get("request-id")
    if request_id is not None and not 0 < len(request_id) <= _LONGEST_ID:
        raise _Wrong(f"the request id has {len(request_id)} characters; 1 to {_LONGEST_ID} are allowed")
    return request_id


def _milliseconds(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is not None and not _NUMBER.fullmatch(value):
        raise _Wrong(f"the header `{name}` holds {value[:40]!r}, which is no number of milliseconds")
    return None if value is None else int(value)


def _reply_to(headers: Mapping[str, str], names: Names) -> str | None:
    topic = headers.get("reply-to")
    if topic is not None and not names.reply_allowed(topic):
        raise _Wrong(_not_allowed(topic, names))
    return topic


def _not_allowed(topic: str, names: Names) -> str:
    return f"the reply topic {topic[:200]!r} is not allowed; {names.reply_rule}"


def _flag(headers: Mapping[str, str]) -> bool:
    flag = headers.get("stream", "").lower()
    if flag not in _FLAGS:
        raise _Wrong(f"the header `stream` holds {flag[:40]!r}; `true` or `false` is meant")
    return _FLAGS[flag]


def _claim(headers: Mapping[str, str], body: bytes) -> Claim | None:
    """A body in the blob store; all of its headers or none."""
    given = [name for name in (CLAIM, CLAIM_HASH, CLAIM_SIZE) if name in headers]
    if not given:
        return None
    if len(given) < 3 or not headers[CLAIM] or not _SHA256.fullmatch(headers[CLAIM_HASH]):
        raise _Wrong(f"`{CLAIM}` needs an address, `{CLAIM_HASH}` (SHA-256, hex) and `{CLAIM_SIZE}`")
    if not _NUMBER.fullmatch(headers[CLAIM_SIZE]):
        raise _Wrong(f"`{CLAIM_SIZE}` holds {headers[CLAIM_SIZE][:40]!r}, which is no number of bytes")
    if body:
        raise _Wrong(f"the record has a body and `{CLAIM}`, which says that its body lies elsewhere")
    return Claim(headers[CLAIM], bytes.fromhex(headers[CLAIM_HASH]), int(headers[CLAIM_SIZE]))


def _position(record: ConsumerRecord, headers: Mapping[str, str], place: LogPlace, names: Names) -> str:
    position = headers.get(POSITION)
    if position is None:
        return Position(place, record.offset).text(names)
    if parse_position(names, position) is None:
        raise _Wrong(f"the header `{POSITION}` is reserved for retries and holds no position")
    return position


def _without(headers: Headers, names: Iterable[str]) -> list[tuple[str, bytes]]:
    left_out = frozenset(names)
    return [(name, value or b"") for name, value in headers if name not in left_out]
