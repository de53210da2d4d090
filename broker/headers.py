"""The headers that a message travels with, the same on every broker: Kafka's headers, Redis' further fields.

`request-id`, `deadline` (unix ms), `queue-timeout` (ms), `tenant`, `reply-to`, `stream`, `content-type`, all
optional; any other header travels through to the result, unless its name begins with `headrace-`: these are
ours. A header `lane` is not believed, since lane and pool are those of the queue that the message stands in.
A body in the blob store is named by three headers: its address, its SHA-256 as hex (see `Message.body_hash`)
and its size in bytes; the message has no other body then.

Foreign clients write them, too, so whoever reads them back hears what is wrong with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace.broker.errors import BrokerError, ReplyNotAllowed
from headrace.broker.message import JSON, Claim, Lane, Message
from headrace.broker.names import Names

OWN: Final = "headrace-"  # how the names of our own begin
CLAIM, CLAIM_HASH, CLAIM_SIZE = "headrace-claim", "headrace-claim-hash", "headrace-claim-size"
MOST: Final = 256
_READ = frozenset(
    {
        "body",
        "request-id",
        "lane",
        "tenant",
        "content-type",
        "deadline",
        "queue-timeout",
        "reply-to",
        "stream",
    }
)
_NUMBER = re.compile(r"[0-9]{1,15}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}
_LONGEST_ID = 512


class Unreadable(Exception):
    """Headers that make no sense; the text says why, for the dead letters."""


def is_taken(name: str) -> bool:
    """Whether a header of this name has a meaning for us, so that no publisher may use it for his own."""
    return name in _READ or name.startswith(OWN)


def message_headers(message: Message) -> dict[str, str]:
    """All that is set and has a meaning for us; what else the publisher sent stands in `message.headers`."""
    headers: dict[str, str] = {}
    if message.request_id is not None:
        headers["request-id"] = message.request_id
    if message.tenant:
        headers["tenant"] = message.tenant
    if message.content_type != JSON:
        headers["content-type"] = message.content_type
    if message.deadline_ms is not None:
        headers["deadline"] = str(message.deadline_ms)
    if message.queue_timeout_ms is not None:
        headers["queue-timeout"] = str(message.queue_timeout_ms)
    if message.reply_to is not None:
        headers["reply-to"] = message.reply_to
    if message.stream:
        headers["stream"] = "true"
    if (claim := message.claim) is not None:
        headers |= {CLAIM: claim.address, CLAIM_HASH: claim.body_hash.hex(), CLAIM_SIZE: str(claim.size)}
    return headers


def publishable_headers(message: Message, names: Names) -> dict[str, str]:
    """All headers of a message that is to be published. Raises BrokerError for one that could not be read
    back."""
    headers = message_headers(message)
    if taken := sorted(filter(is_taken, message.headers)):
        raise BrokerError(f"a header may not be called `{taken[0]}`: the name is taken; choose another")
    if len(headers) + len(message.headers) > MOST:
        raise BrokerError(f"more than {MOST} headers in one message; send fewer")
    if message.reply_to is not None and not names.reply_allowed(message.reply_to):
        raise ReplyNotAllowed(_not_allowed(message.reply_to, names))
    try:
        read_message(message.body, headers, message.lane, message.pool, names)
    except Unreadable as error:
        raise BrokerError(f"this message cannot be published: {error}") from error
    return {**headers, **message.headers}


def read_message(body: bytes, headers: Mapping[str, str], lane: Lane, pool: str, names: Names) -> Message:
    """What stands on the queue of this lane and pool; raises Unreadable."""
    return Message(
        body=body,
        request_id=_request_id(headers),
        lane=lane,
        tenant=headers.get("tenant", ""),
        content_type=headers.get("content-type", JSON),
        deadline_ms=number(headers, "deadline", "unix time in milliseconds"),
        reply_to=_reply_to(headers, names),
        stream=_flag(headers),
        headers={name: value for name, value in headers.items() if not is_taken(name)},
        pool=pool,
        queue_timeout_ms=number(headers, "queue-timeout", "number of milliseconds"),
        claim=_claim(headers, body),
    )


def number(headers: Mapping[str, str], name: str, meaning: str) -> int | None:
    """`meaning`: what the header should hold, for who put something else there; raises Unreadable."""
    value = headers.get(name)
    if value is not None and not _NUMBER.fullmatch(value):
        raise Unreadable(f"the header `{name}` holds {value[:40]!r}, which is no {meaning}")
    return None if value is None else int(value)


def text(data: bytes | None) -> str:
    """A header's name or value; raises Unreadable."""
    try:
        return (data or b"").decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"a header is not UTF-8: {(data or b'')[:40]!r}") from error


def encoded(value: str) -> bytes:
    """Raises BrokerError for what Python can hold and nobody else."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise BrokerError(f"{value[:40]!r} holds half a character and cannot be sent") from error


def _request_id(headers: Mapping[str, str]) -> str | None:
    request_id = headers.get("request-id")
    if request_id is not None and not 0 < len(request_id) <= _LONGEST_ID:
        raise Unreadable(f"the request id has {len(request_id)} characters; 1 to {_LONGEST_ID} are allowed")
    return request_id


def _reply_to(headers: Mapping[str, str], names: Names) -> str | None:
    topic = headers.get("reply-to")
    if topic is not None and not names.reply_allowed(topic):
        raise Unreadable(_not_allowed(topic, names))
    return topic


def _not_allowed(topic: str, names: Names) -> str:
    return f"the reply topic {topic[:200]!r} is not allowed; {names.reply_rule}"


def _flag(headers: Mapping[str, str]) -> bool:
    flag = headers.get("stream", "").lower()
    if flag not in _FLAGS:
        raise Unreadable(f"the header `stream` holds {flag[:40]!r}; `true` or `false` is meant")
    return _FLAGS[flag]


def _claim(headers: Mapping[str, str], body: bytes) -> Claim | None:
    """All of its headers, or none."""
    given = [name for name in (CLAIM, CLAIM_HASH, CLAIM_SIZE) if name in headers]
    if not given:
        return None
    if len(given) < 3 or not headers[CLAIM] or not _SHA256.fullmatch(headers[CLAIM_HASH]):
        raise Unreadable(f"`{CLAIM}` needs an address, `{CLAIM_HASH}` (64 hex digits) and `{CLAIM_SIZE}`")
    size = number(headers, CLAIM_SIZE, "number of bytes")
    assert size is not None
    if body:
        raise Unreadable(f"there is a body beside `{CLAIM}`, which says that it lies elsewhere")
    return Claim(headers[CLAIM], bytes.fromhex(headers[CLAIM_HASH]), size)
