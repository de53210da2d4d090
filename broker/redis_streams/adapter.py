"""The queue contract over Redis Streams (Redis 6.2 or later, or Valkey; one server, no cluster).

    publish ──► requests.[pool.]<lane> ──► group ──► session (session.py)
                     ▲                           │ append, settle (scripts/*.lua)
                     └── retry set ◄─────────────┤
    watch   ◄── log of the request ◄─────────────┤
            ◄── feed.<n> (feeds.py) ◄────────────┤
    results ◄── results, reply.* ◄───────────────┘

One script is one atomic step, so the protocol's decisions stand in `scripts/`, with what they keep true at
the head of `common.lua`. Python builds the calls (calls.py), and reads (logs.py).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

from headrace.broker.backoff import Backoff
from headrace.broker.bounds import LONGEST_LEASE_S
from headrace.broker.contract import (
    CancelResult,
    Conflict,
    ConsumerEntry,
    ConsumerSession,
    DeadLettered,
    LaneDepth,
    LaneStats,
    Lease,
    Published,
    PublishResult,
    QueueStats,
    ResultLine,
    Stray,
)
from headrace.broker.errors import BrokerError, BrokerUnavailable, ReplyNotAllowed, UnknownCursor
from headrace.broker.events import Logged
from headrace.broker.message import DEFAULT_POOL, Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.calls import BrokerCalls
from headrace.broker.redis_streams.codec import check_pool, pairs
from headrace.broker.redis_streams.feeds import FeedReader
from headrace.broker.redis_streams.letters import DeadLetters
from headrace.broker.redis_streams.link import BLOCK_MS, Link, Reply
from headrace.broker.redis_streams.logs import LogReader
from headrace.broker.redis_streams.probe import check_server
from headrace.broker.redis_streams.registry import read_entry
from headrace.broker.redis_streams.scripts import Scripts
from headrace.broker.redis_streams.session import RedisSession
from headrace.broker.redis_streams.settings import Retention
from headrace.broker.redis_streams.strays import find_strays

_PUBLISH_COUNT = 256
_PUBLISH_BYTES = 4 << 20
_RESULT_PAGE = 256
_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class RedisBroker:
    """See `Broker`. `warnings` tells what the server promises less than it could."""

    def __init__(self, url: str, names: Names, retention: Retention) -> None:
        self.warnings: list[str] = []
        self._names, self._retention = names, retention
        self._link, self._blocking = Link(url), Link(url, blocking=True)
        self._scripts = Scripts(self._link)
        self._calls = BrokerCalls(names, retention)
        self._feeds = FeedReader(self._link, self._blocking)
        self._logs = LogReader(self._link, self._feeds, names)
        self._letters = DeadLetters(self._link, self._scripts, self._calls, names)
        self._closed = False

    async def start(self) -> None:
        """Looks whether the server can be used; fills `warnings`."""
        self.warnings = await check_server(self._link)

    async def publish(self, messages: Sequence[Message]) -> list[PublishResult]:
        """Large publishes go in several transactions: on BrokerUnavailable some of the messages may stand on
        the queue, and sending all of them again is safe for those with an id."""
        calls = [(message, self._calls.publish(message)) for message in messages]
        results: list[PublishResult] = []
        for chunk in _chunks([message for message, _ in calls]):
            behind = len(results) + len(chunk)
            replies = await self._scripts.run_all([call for _, call in calls[len(results) : behind]])
            results += map(self._published, chunk, replies)
        return results

    def _published(self, message: Message, reply: Reply) -> PublishResult:
        position = f"{self._names.requests(message.lane, message.pool)}/{reply[1].decode()}"
        ref = RequestRef(message.request_id or position, message.tenant)
        return Conflict(ref) if reply[0] == b"conflict" else Published(ref, reply[0] == b"duplicate")

    def place(self, lane: Lane, pool: str = DEFAULT_POOL) -> int:
        """Always 0: each request has a log of its own, found by its name."""
        return 0

    async def cancel(self, ref: RequestRef) -> CancelResult:
        reply = await self._scripts.run(self._calls.cancel(ref))
        return CancelResult(reply.decode())

    def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        return self._logs.watch(ref, cursor)

    async def ping(self) -> None:
        await self._link.call("PING")

    async def known(self, ref: RequestRef) -> bool:
        index = ("HEXISTS", self._names.index(ref), "hash")  # a mere cancel mark does not count
        log = ("EXISTS", self._names.log(ref))
        return any(await self._link.transaction([index, log]))

    async def results(self, topic: str | None = None, cursor: str = "") -> AsyncIterator[ResultLine]:
        """Reconnects by itself and misses nothing; ends when the broker is closed."""
        topic, place, backoff = self._readable(topic), _checked(cursor) or "0-0", Backoff()
        while not self._closed:
            read = ("XREAD", "COUNT", _RESULT_PAGE, "BLOCK", BLOCK_MS, "STREAMS", topic, place)
            try:
                reply = await self._blocking.call(*read)
            except BrokerUnavailable:
                await backoff.wait()
                continue
            backoff.reset()
            for entry_id, flat in reply[0][1] if reply else ():
                place = entry_id.decode()
                fields = {name.decode(errors="replace"): value for name, value in pairs(flat)}
                line = fields.pop("body", b"")
                headers = {name: value.decode(errors="replace") for name, value in fields.items()}
                yield ResultLine(place, line, headers)

    async def trim_results(self, topic: str, cursor: str) -> None:
        if not self._names.reply_allowed(topic):
            raise ReplyNotAllowed(f"only reply topics can be trimmed, and {topic[:200]!r} is none")
        milliseconds, _, number = _checked(cursor).partition("-")
        if number:
            await self._link.call("XTRIM", topic, "MINID", f"{milliseconds}-{int(number) + 1}")

    async def dead_letters(self, limit: int = 100) -> list[DeadLettered]:
        return await self._letters.latest(limit)

    def each_dead_letter(self) -> AsyncGenerator[DeadLettered, None]:
        return self._letters.each()

    async def dead_letter(self, position: str) -> DeadLettered | None:
        return await self._letters.get(position)

    async def replay(self, position: str) -> RequestRef | None:
        return await self._letters.replay(position)

    async def discard(self, positions: Sequence[str]) -> int:
        return await self._letters.discard(positions)

    async def stats(self, pool: str = DEFAULT_POOL) -> QueueStats:
        """Retries are those of the pool, dead letters those of all."""
        lanes = tuple(Lane)
        retrying, dead_letters, replies = await self._scripts.run(self._calls.stats(lanes, pool))
        stats, leases = {}, []
        for lane, (waiting, leased, oldest_ms, held, paused) in zip(lanes, replies, strict=True):
            stats[lane] = LaneStats(waiting, leased, oldest_ms, bool(paused))
            leases += [Lease(lane, name.decode(), count, idle_ms) for name, count, idle_ms in held]
        return QueueStats(stats, leases, retrying, dead_letters)

    async def depths(self, pool: str = DEFAULT_POOL) -> dict[Lane, LaneDepth]:
        lanes = (await self.stats(pool)).lanes
        return {lane: LaneDepth(stats.waiting, stats.paused) for lane, stats in lanes.items()}

    async def pools(self) -> list[str]:
        named = await self._link.call("SMEMBERS", self._names.pools)
        return [DEFAULT_POOL, *sorted(name.decode() for name in named)]

    async def strays(self) -> list[Stray]:
        return await find_strays(self._link, self._names, await self.pools())

    async def pause(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        check_pool(pool)
        await self._link.call("SADD", self._names.paused, self._names.requests(lane, pool))

    async def resume(self, lane: Lane, pool: str = DEFAULT_POOL) -> None:
        """Wakes all who wait, as a release does: they look, and sweep, at once."""
        stream, released = self._names.requests(lane, pool), self._names.released
        wake = ("XADD", released, "MAXLEN", 1, "*", "resumed", stream)
        await self._link.transaction([("SREM", self._names.paused, stream), wake])

    async def consumers(self) -> list[ConsumerEntry]:
        found = await self._scripts.run(self._calls.consumers())
        entries = [read_entry(name, idle_ms, said) for name, idle_ms, said in found]
        return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.name)

    async def consume(
        self, lanes: Sequence[Lane], lease_ms: int, *, pool: str = DEFAULT_POOL
    ) -> ConsumerSession:
        if not lanes or not 0 < lease_ms <= LONGEST_LEASE_S * 1000:
            raise BrokerError(
                "a consumer needs at least one lane, and a lease above 0 ms and of a day at most"
            )
        check_pool(pool)
        wanted = tuple(dict.fromkeys(lanes))
        links = self._link, self._blocking
        session = RedisSession(*links, self._names, self._retention, wanted, pool, lease_ms)
        await session.start()
        return session

    async def close(self) -> None:
        self._closed = True
        await self._feeds.close()
        await self._blocking.close()
        await self._link.close()

    def _readable(self, topic: str | None) -> str:
        if topic is None or topic == self._names.results or self._names.reply_allowed(topic):
            return topic or self._names.results
        raise ReplyNotAllowed(f"{topic[:200]!r} is no result topic; {self._names.reply_rule}")


def _chunks(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """In runs that fit one transaction without holding up the server."""
    chunk: list[Message] = []
    size = 0
    for message in messages:
        if chunk and (len(chunk) == _PUBLISH_COUNT or size + len(message.body) > _PUBLISH_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(message)
        size += len(message.body)
    if chunk:
        yield chunk


def _checked(cursor: str) -> str:
    if cursor and not _CURSOR.fullmatch(cursor):
        raise UnknownCursor(f"the cursor {cursor[:60]!r} names no line of a result topic")
    return cursor
