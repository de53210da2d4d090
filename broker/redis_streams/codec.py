"""Stream fields to messages and back.

An entry's fields are `body` and those of `broker/headers.py`. So `XADD headrace.requests.batch * body '{…}'`
is a whole producer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.broker.errors import BrokerError
from headrace.broker.headers import MOST, Unreadable, encoded, publishable_headers, read_message, text
from headrace.broker.message import Delivery, Lane, Message, RequestRef
from headrace.broker.names import POOL, Names

POSITION = "headrace-position"  # on entries that came back from a retry: where the request first stood
KIND, CHUNK = "headrace-kind", "chunk"  # on lines of a reply topic that are chunks of an answer
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class Entry(msgspec.Struct, frozen=True):
    """Where a delivery stands now; the handle of a `Delivery`."""

    stream: str
    entry_id: str

    @property
    def place(self) -> str:
        return f"{self.stream}/{self.entry_id}"


def pairs(flat: Sequence[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Fields and values of a raw entry, which alternate."""
    return zip(flat[::2], flat[1::2], strict=True)


def encode(message: Message, names: Names) -> list[bytes]:
    """Fields and values of an entry, alternating. Raises BrokerError for what could not be read back."""
    check_pool(message.pool)
    return [b"body", message.body, *_flat(publishable_headers(message, names))]


def decode(
    entry: Entry, flat: Sequence[bytes], lane: Lane, pool: str, names: Names, redelivered: bool = False
) -> Delivery:
    """The delivery that an entry of this lane and pool stands for; raises Unreadable."""
    values = dict(pairs(flat))
    sent = len(flat) // 2 - (POSITION.encode() in values)  # a retry added that one
    if sent > MOST + 1:
        raise Unreadable(f"{sent} fields are more than the {MOST + 1} allowed")
    if b"body" not in values:
        raise Unreadable("there is no field `body`")
    body = values.pop(b"body")
    fields = {text(name): text(value) for name, value in values.items()}
    message = read_message(body, fields, lane, pool, names)
    position = _position(fields, entry, names)
    return Delivery(
        message=message,
        ref=RequestRef(message.request_id or position, message.tenant),
        position=position,
        record=entry.place,
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
    return [encoded(part) for pair in fields.items() for part in pair]


def _identity(ref: RequestRef) -> dict[str, str]:
    return {"request-id": ref.request_id} | ({"tenant": ref.tenant} if ref.tenant else {})


def _position(fields: Mapping[str, str], entry: Entry, names: Names) -> str:
    position = fields.get(POSITION)
    if position is None:
        return entry.place
    stream, _, entry_id = position.rpartition("/")
    if queue_of(stream, names) is None or not _ENTRY_ID.fullmatch(entry_id):
        raise Unreadable(f"the field `{POSITION}` is reserved for retries and holds no position")
    return position
