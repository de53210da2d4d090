"""Reads the log of one request: page by page, and live."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerUnavailable, UnknownCursor
from headrace.broker.events import Logged
from headrace.broker.fold import Fold
from headrace.broker.message import RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.calls import PAGE
from headrace.broker.redis_streams.feeds import FeedReader, LogEntry, Tail, feed_number
from headrace.broker.redis_streams.link import Link, Reply
from headrace.broker.wire import decode_event

_CURSOR = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")


class LogReader:
    """Reads logs through one connection pool and one feed reader."""

    def __init__(self, link: Link, feeds: FeedReader, names: Names) -> None:
        self._link, self._feeds, self._names = link, feeds, names

    async def watch(self, ref: RequestRef, cursor: str) -> AsyncIterator[Logged]:
        """See `Broker.watch`. Rides out losses of the connection: it re-reads from where it is."""
        log = self._names.log(ref)
        backoff = Backoff()
        if cursor:
            await self._check_cursor(log, cursor, backoff)
        tail = Tail(self._names.feed(feed_number(log)), log)
        self._feeds.attach(tail)
        try:
            async for logged in self._follow(log, tail, backoff):
                yield logged
        finally:
            self._feeds.detach(tail)

    async def _follow(self, log: str, tail: Tail, backoff: Backoff) -> AsyncIterator[Logged]:
        state, last = Fold(), (0, 0)
        while not state.ended:
            entries = await tail.take()
            if entries is None:
                entries = await self._read_on(log, last, tail, backoff)
            for entry_id, data in entries:
                if (place := entry_place(entry_id)) <= last:
                    continue
                last = place
                event = decode_event(data)
                state.read(event)
                yield Logged(entry_id.decode(), event)
                if state.ended:
                    return

    async def _read_on(self, log: str, last: tuple[int, int], tail: Tail, backoff: Backoff) -> list[LogEntry]:
        """The next page of the log; while there may be more, the tail stays lapsed.

        A log that was begun and is gone had ended long ago: who waits for its end would wait for ever."""
        try:
            page = await read_page(self._link, log, last)
            if not page and last > (0, 0) and not await self._link.call("EXISTS", log):
                raise UnknownCursor("the log of this request is gone: it is not kept for ever")
        except BrokerUnavailable:
            tail.lapse()
            await backoff.wait()
            return []
        backoff.reset()
        if len(page) == PAGE:
            tail.lapse()
        return page

    async def _check_cursor(self, log: str, cursor: str, backoff: Backoff) -> None:
        while _CURSOR.fullmatch(cursor):
            try:
                if await self._link.call("XRANGE", log, cursor, cursor):
                    return
                break
            except BrokerUnavailable:
                await backoff.wait()
        raise UnknownCursor(
            f"the cursor {cursor[:60]!r} names no event of this request; watch it from its beginning"
        )


async def read_page(link: Link, log: str, last: tuple[int, int]) -> list[LogEntry]:
    """Up to PAGE entries behind `last`."""
    return log_entries(await link.call("XRANGE", log, f"({last[0]}-{last[1]}", "+", "COUNT", PAGE))


def log_entries(reply: Reply) -> list[LogEntry]:
    """Entries of a raw XRANGE reply: entry id and bytes of the event."""
    return [(entry_id, fields[1]) for entry_id, fields in reply]


def entry_place(entry_id: bytes) -> tuple[int, int]:
    """An entry id as something that compares."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number)
