"""The gateway's side of the feeds: one blocking read for all streams that anybody watches.

Every append also goes to one of `FEEDS` bounded streams, chosen by the request. A broker tails the feeds
that carry its live watchers, as it would tail partitions on Kafka:

    FeedReader ── XREAD feeds ──► Tail of watcher 1 (bounded)
                             └──► Tail of watcher 2 …

The log stays the truth. Whenever a watcher may have missed something (it just came, its buffer ran over,
the feed was trimmed before it was read, the connection was lost) its tail *lapses*: it re-reads its log
from where it is. So a lapse costs a read, never an event: the feed's place is always settled before.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TypeAlias

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.redis_streams.link import BLOCK_MS, Command, Link, Reply

FEEDS = 16  # the same for all writers and readers of an installation
_TAIL_LENGTH = 256
_READ_COUNT = 512

LogEntry: TypeAlias = tuple[bytes, bytes]  # entry id, event


def feed_number(log: str) -> int:
    """The feed that carries a log."""
    return zlib.crc32(log.encode()) % FEEDS


class Tail:
    """What one watcher has still to see: appended entries, or the order to re-read its log."""

    def __init__(self, feed: str, log: str, length: int = _TAIL_LENGTH) -> None:
        self.feed, self.log = feed, log
        self._length = length
        self._entries: deque[LogEntry] = deque()
        self._lapsed = False
        self._failure: BaseException | None = None
        self._ready = asyncio.Event()

    def put(self, entries: Sequence[LogEntry]) -> None:
        """Adds entries; one more than fits, and the tail lapses."""
        if self._lapsed or len(self._entries) + len(entries) > self._length:
            return self.lapse()
        self._entries.extend(entries)
        return self._ready.set()

    def lapse(self) -> None:
        self._entries.clear()
        self._lapsed = True
        self._ready.set()

    def fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._ready.set()

    async def take(self) -> list[LogEntry] | None:
        """Waits for entries; None: re-read the log. Raises what ended the feed reader."""
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        self._ready.clear()
        entries, lapsed = list(self._entries), self._lapsed
        self._entries.clear()
        self._lapsed = False
        return None if lapsed else entries


class FeedReader:
    """Tails feeds for all watchers of one broker. Its task lives while there are watchers."""

    def __init__(self, link: Link, blocking: Link) -> None:
        self._link, self._blocking = link, blocking
        self._tails: defaultdict[str, list[Tail]] = defaultdict(list)
        self._places: dict[str, int] = {}  # number of the last entry read, per feed
        self._recheck_at = 0.0
        self._changed = False  # watchers came or went since the read that is under way began
        self._patience: asyncio.Timeout | None = None  # that of the read
        self._task: asyncio.Task[None] | None = None

    def attach(self, tail: Tail) -> None:
        """From now on `tail` gets what is appended; it lapses as soon as the feed's place is settled."""
        self._tails[tail.feed].append(tail)
        if tail.feed in self._places:
            tail.lapse()
        else:
            self._change()
        # Also where the feed's place is known: it is that of a task that failed, while a slow watcher of it
        # has not gone yet.
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="headrace feeds")
            self._task.add_done_callback(self._on_end)

    def detach(self, tail: Tail) -> None:
        tails = self._tails[tail.feed]
        tails.remove(tail)
        if not tails:
            del self._tails[tail.feed]
            self._places.pop(tail.feed, None)
            self._change()

    def _change(self) -> None:
        """Ends the read that is under way: it does not know of all feeds, or knows too many. That loses
        nothing: a place moves only when its entries were delivered."""
        self._changed = True
        if self._patience is not None:
            self._patience.reschedule(0.0)
            self._patience = None

    async def close(self) -> None:
        """Ends the task; watchers that are still there end with BrokerUnavailable."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        closed = BrokerUnavailable("the connection to the broker was closed")
        failure = closed if task.cancelled() else task.exception()
        if failure is not None:
            for tail in [tail for tails in self._tails.values() for tail in tails]:
                tail.fail(failure)

    async def _run(self) -> None:
        backoff = Backoff()
        while self._tails:
            try:
                await self._settle_places()
                replies = await self._read()
            except BrokerUnavailable:
                self._places.clear()
                await backoff.wait()
                continue
            backoff.reset()
            for feed, entries in replies:
                self._deliver(feed.decode(), entries)

    async def _settle_places(self) -> None:
        """Begins feeds at their end; now and then all of them are looked at: one that somebody deleted counts
        from 1 again, below our place, and its watchers would wait for ever."""
        self._changed = False
        recheck = time.monotonic() >= self._recheck_at
        for feed in self._tails.keys() - (() if recheck else self._places.keys()):
            last = await self._link.call("XREVRANGE", feed, "+", "-", "COUNT", 1)
            end = _number(last[0][0]) if last else 0
            if feed in self._tails and end < self._places.get(feed, end + 1):
                self._places[feed] = end
                for tail in self._tails[feed]:
                    tail.lapse()
        if recheck:
            self._recheck_at = time.monotonic() + BLOCK_MS / 1000

    async def _read(self) -> Reply:
        """New entries of all feeds; none when watchers came or went."""
        if self._changed:
            return []
        feeds = list(self._places)
        places = [f"{self._places[feed]}-0" for feed in feeds]
        read: Command = ("XREAD", "COUNT", _READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", *feeds, *places)
        try:
            async with asyncio.timeout(None) as self._patience:
                return await self._blocking.call(*read) or []
        except TimeoutError:
            return []
        finally:
            self._patience = None

    def _deliver(self, feed: str, entries: Reply) -> None:
        if feed not in self._places:
            return
        for entry_id, fields in entries:
            number = _number(entry_id)
            if number != self._places[feed] + 1:
                for tail in self._tails[feed]:
                    tail.lapse()
            self._places[feed] = number
            log = fields[1].decode()
            appended = list(zip(fields[2::2], fields[3::2], strict=True))
            for tail in self._tails[feed]:
                if tail.log == log:
                    tail.put(appended)


def _number(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])
