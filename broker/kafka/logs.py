"""Reads the log of one request, wherever it lies and wherever it moves to.

Fences that stand before a request's first event are shown as one, that of the epoch in force, which says it
all; so every reader is given the same entries, wherever it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from headrace.broker.backoff import Backoff
from headrace.broker.errors import BrokerError, BrokerUnavailable, UnknownCursor
from headrace.broker.events import Event, Logged, Moved
from headrace.broker.fold import Fold
from headrace.broker.kafka.beginnings import is_beginning
from headrace.broker.kafka.homes import Home, Homes, Seen
from headrace.broker.kafka.partition_reader import PartitionReader
from headrace.broker.kafka.places import LogPlace, Position, log_key, parse_cursor, parse_place
from headrace.broker.kafka.rings import Entry, event_of, in_force
from headrace.broker.kafka.tails import Listener, Tail, Tails
from headrace.broker.message import RequestRef
from headrace.broker.names import Names

IsFinished: TypeAlias = Callable[[LogPlace, int], Awaitable[bool]]

_LOOK_AGAIN_S = 2.0  # who waits for a request that is nowhere yet looks for new lanes and pools so often


class LogReader:
    """The logs that one connection reads. `is_finished`: whether the delivery of a record was settled."""

    def __init__(
        self, homes: Homes, tails: Tails, reader: PartitionReader, names: Names, is_finished: IsFinished
    ) -> None:
        self._homes, self._tails, self._reader = homes, tails, reader
        self._names, self._is_finished = names, is_finished

    async def watch(self, ref: RequestRef, cursor: str = "") -> AsyncIterator[Logged]:
        """See `Broker.watch`. Rides out losses of the connection: it reads on from where it is."""
        seen = await self._check_cursor(ref, cursor) if cursor else None
        begins = await self._without_doubt(ref, await self._wait_for(ref))
        if seen is not None and self._homes.is_behind(begins, seen):
            begins = await self._persist(functools.partial(self._homes.of_seen, ref, seen))
        home: Home | None = begins
        state, left = Fold(), dict[LogPlace, int]()
        while home is not None:
            here, home = home, None
            async with contextlib.aclosing(self._read(here, ref, left.get(here.place, 0))) as entries:
                async for entry, event in entries:
                    counts = state.read(event)
                    yield Logged(f"{here.place.text}/{entry.offset}", event)
                    if state.ended:
                        self._homes.ended(ref, begins)  # and not `here`, which is where it ended
                        return
                    if counts and (home := _goes_on(event, entry)) is not None:
                        left[here.place] = entry.offset + 1
                        break

    async def fold(self, ref: RequestRef, home: Home) -> Fold:
        """The fold of what stands in the log now."""
        state, going_on, key, left = Fold(), home, log_key(ref).encode(), dict[LogPlace, int]()
        while True:
            here = going_on
            for entry in await self._reader.stored(here.place, key, here.since_ms):
                event = event_of(entry)
                passed = entry.key == key and entry.offset < left.get(here.place, 0)
                if event is None or passed or not state.read(event):
                    continue
                if (moved := _goes_on(event, entry)) is not None:
                    going_on = moved
                    left[here.place] = entry.offset + 1
                    break
            if going_on is here:
                return state

    async def _read(
        self, home: Home, ref: RequestRef, left: int
    ) -> AsyncGenerator[tuple[Entry, Event], None]:
        """Entries of one place, for ever, with the fences before the first one shown as one. `left`: the
        offset at which the log left this place before; it has come back, and what stands below was read."""
        fence: Entry | None = None
        begun = False
        follow = self._reader.follow(home.place, log_key(ref).encode(), home.since_ms)
        async with contextlib.aclosing(follow) as entries:
            async for entry in entries:
                if (event := event_of(entry)) is None:
                    continue
                if entry.key is None and not begun:
                    fence = in_force(fence, entry)
                    continue
                if entry.key is not None and entry.offset < left:
                    continue
                if fence is not None and (before := event_of(fence)) is not None:
                    yield fence, before
                fence, begun = None, True
                yield entry, event

    # ------------------------------------------------------------------------------------- where it is

    async def _wait_for(self, ref: RequestRef) -> Home:
        """The home of the request; waits for it where it is nowhere yet."""
        backoff = Backoff()
        while True:
            try:
                home = await self._homes.sure(ref) or await self._homes.find(ref) or await self._first(ref)
                if home is not None:
                    return home
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()

    async def _without_doubt(self, ref: RequestRef, home: Home) -> Home:
        """Where the log begins of what this connection published under an id that was not made just now: with
        our copy, or with an earlier one. To look for that is dear, so it takes a sign: what comes first is no
        beginning of our copy's, or our copy was settled and nothing came."""
        if home.copy is None:
            return home
        if await self._begins_with(home.copy, ref, home):
            return self._homes.begins_here(ref, home)
        return await self._persist(functools.partial(self._homes.earliest, ref, home))

    async def _persist(self, search: Callable[[], Awaitable[Home]]) -> Home:
        """A search that rides out losses of the connection."""
        backoff = Backoff()
        while True:
            try:
                return await search()
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()

    async def _begins_with(self, copy: int, ref: RequestRef, home: Home) -> bool:
        """Waits until the first events since our copy tell; False also where it was settled before. Who asks
        for that may wait for long: commits of a group that has no coordinator are not to be had."""
        own = Position(home.place, copy).text(self._names)
        async with contextlib.aclosing(self._read(home, ref, 0)) as entries:
            told = asyncio.ensure_future(_is_beginning(entries, own))
            settled = asyncio.ensure_future(self._settled(home.place, copy))
            try:
                await asyncio.wait({told, settled}, return_when=asyncio.FIRST_COMPLETED)
                return told.done() and told.result()
            finally:
                told.cancel()
                settled.cancel()
                await asyncio.gather(told, settled, return_exceptions=True)

    async def _settled(self, place: LogPlace, copy: int) -> None:
        """Returns once the delivery of this record was settled."""
        finished = False
        while not finished:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with contextlib.suppress(BrokerError):  # who is not told waits on
                finished = await self._is_finished(place, copy)

    async def _first(self, ref: RequestRef) -> Home | None:
        """Watches all places where the log may begin, for a while."""
        key = log_key(ref).encode()
        published = self._homes.listen(ref)
        tails: list[tuple[Tail, Listener]] = []
        try:
            attached = await self._tails.attach(await self._homes.candidates(ref))
            tails = [(tail, tail.listen(key, published)) for tail in attached]
            if (home := await self._homes.find(ref)) is not None:
                return home
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    while not any(tail.ring.holds(key) for tail, _ in tails):
                        self._tails.check()
                        published.clear()
                        await published.wait()
                        if (home := self._homes.remembered(ref)) is not None:
                            return home
            found = [(tail.ring.first_ms(key), tail.place) for tail, _ in tails if tail.ring.holds(key)]
            return Home(min(found)[1], min(found)[0]) if found else None
        finally:
            self._homes.unlisten(ref, published)
            for tail, listener in tails:
                tail.unlisten(listener)
                self._tails.detach(tail)

    # ---------------------------------------------------------------------------------------- cursors

    async def _check_cursor(self, ref: RequestRef, cursor: str) -> Seen:
        """A cursor names an entry that this request's readers have seen."""
        backoff, parsed = Backoff(), parse_cursor(cursor)
        while parsed is not None:
            try:
                if (seen := await self._seen(ref, *parsed)) is not None:
                    return seen
                break
            except BrokerUnavailable:
                self._tails.check()
                await backoff.wait()
        raise UnknownCursor(
            f"the cursor {cursor[:60]!r} names no event of this request; watch it from its beginning"
        )

    async def _seen(self, ref: RequestRef, place: LogPlace, offset: int) -> Seen | None:
        """An event of the request, or a fence where it has events."""
        key = log_key(ref).encode()
        if not await self._homes.exists(place):
            return None
        entry = await self._reader.at(place, offset)
        if entry is None or entry.key not in (key, None):
            return None
        seen = Seen(place, offset, entry.at_ms)
        if entry.key == key:
            return seen
        home = await self._homes.find(ref)
        since_ms = home.since_ms if home is not None and home.place == place else entry.at_ms
        return seen if any(e.key == key for e in await self._reader.stored(place, key, since_ms)) else None


async def _is_beginning(entries: AsyncGenerator[tuple[Entry, Event], None], delivery: str) -> bool:
    """As soon as the events of the request tell."""
    seen: list[Event] = []
    async for entry, event in entries:
        seen += [event] if entry.key is not None else []
        if (told := is_beginning(seen, delivery)) is not None:
            return told
    return False


def _goes_on(event: Event, entry: Entry) -> Home | None:
    """Where a log goes on behind an event that counts, if it moves."""
    place = parse_place(event.log) if isinstance(event, Moved) else None
    return None if place is None else Home(place, entry.at_ms)
