"""The dead letters: looked at, replayed, discarded.

An entry holds `reason` and `origin` first; what follows are the message's own fields, whatever their names.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence

from msgspec import structs

from headrace.broker.contract import DeadLettered
from headrace.broker.errors import BrokerError
from headrace.broker.headers import Unreadable
from headrace.broker.ids import new_request_id
from headrace.broker.message import Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.calls import BrokerCalls
from headrace.broker.redis_streams.codec import Entry, decode, pairs, queue_of
from headrace.broker.redis_streams.link import Link, Reply
from headrace.broker.redis_streams.scripts import Scripts

REPLAY_OF = "replay-of"  # on a replayed message: the id under which it died
_ENTRY_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")
_MOST_IDS = 1000
_PAGE = 64  # letters that are read at a time; each may be large


class DeadLetters:
    """The dead letters of one installation."""

    def __init__(self, link: Link, scripts: Scripts, calls: BrokerCalls, names: Names) -> None:
        self._link, self._scripts, self._calls, self._names = link, scripts, calls, names

    async def latest(self, limit: int) -> list[DeadLettered]:
        """Oldest first."""
        reply = await self._link.call("XREVRANGE", self._names.dead_letters, "+", "-", "COUNT", max(1, limit))
        return [self._letter(entry_id, flat) for entry_id, flat in reversed(reply)]

    async def each(self) -> AsyncGenerator[DeadLettered, None]:
        """Oldest first; those that come meanwhile are not among them."""
        topic = self._names.dead_letters
        latest: Reply = await self._link.call("XREVRANGE", topic, "+", "-", "COUNT", 1)
        start, page = "-", latest
        while page:
            page = await self._link.call("XRANGE", topic, start, latest[0][0], "COUNT", _PAGE)
            for entry_id, flat in page:
                yield self._letter(entry_id, flat)
                start = f"({entry_id.decode()}"

    async def get(self, position: str) -> DeadLettered | None:
        entry = await self._entry(position)
        return None if entry is None else self._letter(*entry)

    async def replay(self, position: str) -> RequestRef | None:
        """See `Broker.replay`. Raises BrokerError for what would only come back here."""
        entry = await self._entry(position)
        if entry is None:
            return None
        entry_id, flat = entry
        message = self._again(self._letter(entry_id, flat), flat[4:])
        done = await self._scripts.run(self._calls.replay(entry_id.decode(), message))
        return RequestRef(message.request_id or "", message.tenant) if done else None

    async def discard(self, positions: Sequence[str]) -> int:
        ids = [entry_id for entry_id in map(self._entry_id, dict.fromkeys(positions)) if entry_id is not None]
        chunks = [ids[start : start + _MOST_IDS] for start in range(0, len(ids), _MOST_IDS)]
        return sum([await self._link.call("XDEL", self._names.dead_letters, *chunk) for chunk in chunks])

    def _again(self, letter: DeadLettered, flat: Sequence[bytes]) -> Message:
        """The message as a new request: it went to where its origin says, and all but its id is as it was."""
        stream, _, origin_id = letter.origin.rpartition("/")
        queue = queue_of(stream, self._names)
        try:
            if queue is None:
                raise Unreadable("it does not say which lane it came from")
            old = decode(Entry(stream, origin_id), flat, *queue, self._names)
        except Unreadable as error:
            raise BrokerError(
                f"{letter.position} cannot be replayed, since it is no message: {error}; publish it yourself "
                "as it should be, and remove this letter (`headrace dlq purge`)"
            ) from error
        headers = {**old.message.headers, REPLAY_OF: old.ref.request_id}
        return structs.replace(old.message, request_id=new_request_id(old.message.lane), headers=headers)

    async def _entry(self, position: str) -> tuple[bytes, Sequence[bytes]] | None:
        entry_id = self._entry_id(position)
        if entry_id is None:
            return None
        found: Reply = await self._link.call("XRANGE", self._names.dead_letters, entry_id, entry_id)
        return (found[0][0], found[0][1]) if found else None

    def _entry_id(self, position: str) -> str | None:
        topic, _, entry_id = position.rpartition("/")
        return entry_id if topic == self._names.dead_letters and _ENTRY_ID.fullmatch(entry_id) else None

    def _letter(self, entry_id: bytes, flat: Sequence[bytes]) -> DeadLettered:
        fields = dict(pairs(flat[4:]))
        body = fields.pop(b"body", b"")
        return DeadLettered(
            position=f"{self._names.dead_letters}/{entry_id.decode()}",
            origin=flat[3].decode(errors="replace"),
            reason=flat[1].decode(errors="replace"),
            body=body,
            headers={_shown(name): _shown(value) for name, value in fields.items()},
            at_ms=int(entry_id.partition(b"-")[0]),
        )


def _shown(data: bytes) -> str:
    return data.decode(errors="replace")
