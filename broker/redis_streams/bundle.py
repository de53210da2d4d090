"""Commands of many callers in one round trip.

    caller 1 ── open ────┐
    caller 2 ── settle ──┤ bundle ──► one pipeline ──► server
    caller 3 ── append ──┘   ▲
                             └ what arrives while two round trips are under way waits for the next

A consumer opens and settles hundreds of requests side by side. Each in a round trip of its own costs both
ends more than the work itself: a packed command, two system calls and a wake-up here, the same there, and
with `appendfsync always` an fsync. Each caller still gets its own reply or its own error. Commands of one
caller stay together and in order; nothing is promised between callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.broker.errors import BrokerError
from headrace.broker.redis_streams.link import Command, Link, Reply, Value

_MOST_COMMANDS = 256  # in one round trip: others of the server's clients come between
_MOST_ROUND_TRIPS = 2  # at a time: one is packed and read here while the server works on the other


class _Waiting(msgspec.Struct, frozen=True):
    commands: Sequence[Command]
    replies: asyncio.Future[list[Reply]]


class Bundle:
    """Stands before a link, with its `call` and `pipeline`. A caller that is cancelled leaves its commands
    in the bundle: as with any call that is broken off, their fate is unknown to it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: list[_Waiting] = []
        self._round_trips: set[asyncio.Task[None]] = set()
        self._scheduled = False

    async def call(self, *command: Value) -> Reply:
        """One command and its raw reply; raises as `Link.call` does."""
        [reply] = await self.pipeline([command])
        if isinstance(reply, BrokerError):
            raise reply
        return reply

    async def pipeline(self, commands: Sequence[Command]) -> list[Reply]:
        """Commands side by side; one that was not done leaves its BrokerError in its place."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(commands, loop.create_future())
        self._waiting.append(waiting)
        self._schedule(loop)
        return await waiting.replies

    async def transaction(self, commands: Sequence[Command]) -> list[Reply]:
        """A round trip of its own: as `Link.transaction`."""
        return await self._link.transaction(commands)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """At the end of this turn of the event loop, when all who are awake have said what they want."""
        if self._waiting and not self._scheduled and len(self._round_trips) < _MOST_ROUND_TRIPS:
            self._scheduled = True
            loop.call_soon(self._depart, loop)

    def _depart(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        task = loop.create_task(self._round_trip(self._next()), name="headrace bundle")
        self._round_trips.add(task)
        task.add_done_callback(self._arrived)
        self._schedule(loop)

    def _next(self) -> list[_Waiting]:
        taken = size = 0
        while taken < len(self._waiting) and size < _MOST_COMMANDS:
            size += len(self._waiting[taken].commands)
            taken += 1
        bundle, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return bundle

    async def _round_trip(self, bundle: Sequence[_Waiting]) -> None:
        commands = [command for waiting in bundle for command in waiting.commands]
        try:
            replies = iter(await self._link.pipeline(commands))
        except BaseException as error:
            for waiting in bundle:
                if not waiting.replies.done():
                    waiting.replies.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for waiting in bundle:
            own = [next(replies) for _ in waiting.commands]
            if not waiting.replies.done():
                waiting.replies.set_result(own)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._round_trips.discard(task)
        self._schedule(task.get_loop())
