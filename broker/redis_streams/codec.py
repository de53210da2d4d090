"""Stream fields to messages and back.

An entry's fields are `body` and, all optional, `request-id`, `deadline` (unix ms), `queue-timeout` (ms),
`tenant`, `reply-to`, `stream`, `content-type`; any other field is a header that travels through to the
result. Lane and pool are those of the stream the entry stands in; a field `lane` is not believed. So
`XADD headrace.requests.batch * body '{…}'` is a whole producer.

A body in the blob store is named by `headrace-claim` (its address), `headrace-claim-hash` (SHA-256 as hex,
see `Message.body_hash`) and `headrace-claim-size` (bytes), all three; `body` is empty then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.broker.errors import BrokerError, ReplyNotAllowed
from headrace.broker.headers import CLAIM, CLAIM_HASH, CLAIM_SIZE, message_headers
from headrace.broker.message import JSON, Claim, Delivery, Lane, Message, RequestRef
from headrace.broker.names import POOL, Names

POSITION = "headrace-position"  # on entries that came back from a retry: where the request first stood
KIND, CHUNK = "headrace-kind", "chunk"  # on lines of a reply topic that are chunks of an answer
_SENT = {"body", "request-id", "lane", "deadline", "queue-timeout", "tenant", "reply-to", "stream"}
_KNOWN = _SENT | {"content-type", POSITION, KIND, CLAIM, CLAIM_HASH, CLAIM_SIZE}
_NUMBER = re.compile(r"[0-9]{1,15}")
_HASH = re.compile(r"[0-9a-f]{64}")
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_MOST_FIELDS = 256
_LONGEST_ID = 512


class Entry(msgspec.Struct, frozen=True):
    """Where a delivery stands now; the handle of a `Delivery`."""

    stream: str
    entry_id: str

    @property
    def place(self) -> str:
        return f"{self.stream}/{self.entry_id}"


class Undecodable(Exception):
    """The entry is no message; the text says why, for the dead letters."""


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Fields and values of a raw entry, which alternate."""
    return zip(flat[::2], flat[1::2], strict=True)


def encode(message: Message, names: Names) -> list[bytes]:
    """Fields and values of an entry, alternating. Raises BrokerError for what could not be read back."""
    fields = message_headers(message)
    _check(message, names, fields)
    flat = [b"body", message.body]
    for name, value in {**fields, **message.headers}.items():
        flat += [_bytes(name), _bytes(value)]
    return flat


def decode(
    entry: Entry, flat: Sequence[bytes], lane: Lane, pool: str, names: Names, redelivered: bool = False
) -> Delivery:
    """The delivery that an entry of this lane and pool stands for; raises Undecodable."""
    if len(flat) > 2 * _MOST_FIELDS:
        raise Undecodable(f"{len(flat) // 2} fields are more than the {_MOST_FIELDS} allowed")
    values = dict(pairs(flat))
    if b"body" not in values:
        raise Undecodable("there is no field `body`")
    body = values.pop(b"body")
    fields = {_text(name): _text(value) for name, value in values.items()}
    message = Message(
        body=body,
        request_id=_request_id(fields),
        lane=lane,
        tenant=fields.get("tenant", ""),
        content_type=fields.get("content-type", JSON),
        deadline_ms=_number(fields, "deadline", "unix time in milliseconds"),
        reply_to=_reply_to(fields, names),
        stream=_flag(fields),
        headers={name: value for name, value in fields.items() if name not in _KNOWN},
        pool=pool,
        queue_timeout_ms=_number(fields, "queue-timeout", "number of milliseconds"),
        claim=_claim(fields, body),
    )
    position = _position(fields, entry, names)
    return Delivery(
        message=message,
        ref=RequestRef(message.request_id or position, message.tenant),
        position=position,
        published_ms=int(position.rpartition("/")[2].partition("-")[0]),
        handle=entry,
        redelivered=redelivered or POSITION in fields,
    )


def result_fields(ref: RequestRef, line: bytes, headers: Mapping[str, str]) -> list[bytes]:
    """Fields and values of an entry of a result topic."""
    return [b"body", line, *_flat({**headers, **_identity(ref)})]


def chunk_fields(ref: RequestRef, headers: Mapping[str, str]) -> list[bytes]:
    """Fields and values of a chunk's entry, but its body: each chunk of an answer carries the same."""
    return _flat({**headers, **_identity(ref), KIND: CHUNK})


def queue_of(stream: str, names: Names) -> tuple[Lane, str] | None:
    """Lane and pool of a request stream; None for another key."""
    front, _, lane = stream.rpartition(".")
    pool = front.removeprefix(names.request_base).removeprefix(".")
    if lane not in tuple(Lane) or (pool and not POOL.fullmatch(pool)):
        return None
    return (Lane(lane), pool) if names.requests(Lane(lane), pool) == stream else None


def check_pool(pool: str) -> None:
    """Raises BrokerError for a name that no pool can have."""
    if pool and not POOL.fullmatch(pool):
        raise BrokerError(
            f"{pool[:40]!r} is no name of a pool: 1 to 64 letters, digits, `_` and `-` are allowed"
        )


def _flat(fields: Mapping[str, str]) -> list[bytes]:
    return [_bytes(part) for pair in fields.items() for part in pair]


def _identity(ref: RequestRef) -> dict[str, str]:
    return {"request-id": ref.request_id} | ({"tenant": ref.tenant} if ref.tenant else {})


def _check(message: Message, names: Names, fields: Mapping[str, str]) -> None:
    taken = _KNOWN & message.headers.keys()
    if taken:
        raise BrokerError(f"a header may not be called `{min(taken)}`: the name is taken; choose another")
    if len(fields) + len(message.headers) + 1 > _MOST_FIELDS:
        raise BrokerError(f"more than {_MOST_FIELDS} fields in one message; send fewer headers")
    if message.reply_to is not None and not names.reply_allowed(message.reply_to):
        raise ReplyNotAllowed(_not_allowed(message.reply_to, names))
    check_pool(message.pool)
    try:
        _request_id(fields)
        _number(fields, "deadline", "unix time in milliseconds")
        _number(fields, "queue-timeout", "number of milliseconds")
        _claim(fields, message.body)
    except Undecodable as error:
        raise BrokerError(f"this message cannot be published: {error}") from error


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable(f"a field's name or value is not UTF-8: {data[:40]!r}") from error


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BrokerError(f"{text[:40]!r} holds half a character and cannot be sent") from error


def _request_id(fields: Mapping[str, str]) -> str | None:
    request_id = fields.get("request-id")
    if request_id is not None and not 0 < len(request_id) <= _LONGEST_ID:
        raise Undecodable(f"the request id has {len(request_id)} characters; 1 to {_LONGEST_ID} are allowed")
    return request_id


def _number(fields: Mapping[str, str], name: str, meaning: str) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise Undecodable(f"the {name} {text[:40]!r} is no {meaning}")
    return int(text)


def _claim(fields: Mapping[str, str], body: bytes) -> Claim | None:
    names = (CLAIM, CLAIM_HASH, CLAIM_SIZE)
    address, body_hash, size = (fields.get(name) for name in names)
    if address is None and body_hash is None and size is None:
        return None
    if not address or not _HASH.fullmatch(body_hash or "") or not _NUMBER.fullmatch(size or ""):
        raise Undecodable(f"a claim needs `{CLAIM}`, `{CLAIM_HASH}` (64 hex digits) and `{CLAIM_SIZE}`")
    if body:
        raise Undecodable("a claim names the body, and there is a body beside it")
    return Claim(address, bytes.fromhex(body_hash or ""), int(size or ""))


def _reply_to(fields: Mapping[str, str], names: Names) -> str | None:
    topic = fields.get("reply-to")
    if topic is not None and not names.reply_allowed(topic):
        raise Undecodable(_not_allowed(topic, names))
    return topic


def _not_allowed(topic: str, names: Names) -> str:
    return f"the reply topic {topic[:200]!r} is not allowed; {names.reply_rule}"


def _flag(fields: Mapping[str, str]) -> bool:
    flag = fields.get("stream", "").lower()
    if flag not in _FLAGS:
        raise Undecodable(f"the field `stream` holds {flag[:40]!r}; `true` or `false` is meant")
    return _FLAGS[flag]


def _position(fields: Mapping[str, str], entry: Entry, names: Names) -> str:
    position = fields.get(POSITION)
    if position is None:
        return entry.place
    stream, _, entry_id = position.rpartition("/")
    if queue_of(stream, names) is None or not _ENTRY_ID.fullmatch(entry_id):
        raise Undecodable(f"the field `{POSITION}` is reserved for retries and holds no position")
    return position
