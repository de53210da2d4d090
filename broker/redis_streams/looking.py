"""How a session looks at its queue: takes by order of lanes, sweeps up what lapsed, and waits for more."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from headrace.broker.lanes import Preference, Share
from headrace.broker.message import Lane
from headrace.broker.names import Names
from headrace.broker.redis_streams.calls import Look, SessionCalls
from headrace.broker.redis_streams.codec import Entry
from headrace.broker.redis_streams.link import BLOCK_MS, Link, Reply, ServerError, Value
from headrace.broker.redis_streams.scripts import Scripts
from headrace.broker.redis_streams.sweep import SweepPlan


class TakenEntry(msgspec.Struct, frozen=True):
    """An entry that is now this consumer's. `claimed`: another one had it before."""

    entry: Entry
    lane: Lane
    fields: Sequence[bytes]
    claimed: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look gave; the rest tells what to wait for when that was nothing. `delivered`: by lane, the
    last entry given to anybody; lanes that were not asked, or are paused, are not among them."""

    entries: list[TakenEntry]
    due_ms: int
    delivered: dict[Lane, str]


class QueueLooker:
    """One consumer's view of its lanes; one `look` or `wait` at a time."""

    def __init__(
        self,
        link: Link,
        blocking: Link,
        names: Names,
        calls: SessionCalls,
        lanes: Sequence[Lane],
        pool: str,
        lease_ms: int,
    ) -> None:
        self._link, self._blocking, self._scripts = link, blocking, Scripts(link)
        self._names, self._calls, self._lease_ms = names, calls, lease_ms
        self._streams = {lane: names.requests(lane, pool) for lane in lanes}
        self._lanes = tuple(lanes)
        self._preference = Preference(lanes)
        self._sweeps = SweepPlan(len(lanes), lease_ms)
        self._release_seen = "0-0"

    async def look(self, limit: int, reserved: int, held: Iterable[Entry]) -> Looked:
        """Takes up to `limit` entries, the last `reserved` for the interactive lane only."""
        shares = self._preference.plan(limit, reserved)
        reply = await self._ask(shares, limit, reserved, held)
        entries, sweeps, release, due_ms, delivered = reply
        self._sweeps.advance([cursor.decode() for cursor in sweeps], time.monotonic())
        self._release_seen = release.decode()
        taken = [self._taken(*entry) for entry in entries]
        self._preference.taken(Counter(entry.lane for entry in taken), shares)
        last = {lane: entry_id.decode() for lane, entry_id in zip(self._lanes, delivered, strict=False)}
        return Looked(taken, due_ms, {lane: entry_id for lane, entry_id in last.items() if entry_id})

    async def wait(self, looked: Looked, left_s: float) -> None:
        """Until there may be something. A plain read on the lanes, which takes nothing: an order of lanes
        and a limit over several streams are beyond a blocking group read, and one that is cancelled just
        when its reply arrives would strand what it took."""
        numbers = [self._lanes.index(lane) for lane in looked.delivered]
        block_ms = min(left_s * 1000, BLOCK_MS, self._sweeps.next_due(time.monotonic(), numbers) * 1000)
        if looked.due_ms >= 0:
            block_ms = min(block_ms, looked.due_ms)
        streams = [*(self._streams[lane] for lane in looked.delivered), self._names.released]
        read: list[Value] = ["XREAD", "COUNT", 1, "BLOCK", max(1, int(block_ms)), "STREAMS", *streams]
        await self._blocking.call(*read, *looked.delivered.values(), self._release_seen)

    async def make_groups(self) -> None:
        for stream in self._streams.values():
            create = ("XGROUP", "CREATE", stream, self._names.group, "0", "MKSTREAM")
            try:
                await self._link.call(*create)
            except ServerError as error:
                if not error.group_exists:
                    raise

    async def _ask(self, shares: Sequence[Share], limit: int, reserved: int, held: Iterable[Entry]) -> Reply:
        cursors = self._sweeps.cursors(time.monotonic())
        places = [entry.place for entry in held] if any(cursors) else []
        call = self._calls.pull(
            Look(shares, limit, reserved, self._lease_ms, self._release_seen, cursors, places)
        )
        try:
            return await self._scripts.run(call)
        except ServerError as error:
            if not error.no_group:
                raise
        await self.make_groups()  # somebody deleted a stream, and the group with it
        return await self._scripts.run(call)

    def _taken(self, number: int, entry_id: bytes, fields: Sequence[bytes], claimed: int) -> TakenEntry:
        lane = self._lanes[number - 1]
        return TakenEntry(Entry(self._streams[lane], entry_id.decode()), lane, fields, bool(claimed))
