"""Bodies are read many at a time, or a suspect's alone.

    together  ──┐
    together  ──┴─► all out ──► alone ──► together …

What a body does to whoever reads it, in the parser, the tokenizer or the interpreter below them, it does to
the whole process: nobody can tell whose it was, of those that were being read. So a suspect is read while
nothing else is, and while no suspect is on trial in the engine: the log says of one request at a time that
it is alone, and a process that dies then has died of that one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from headrace.consumer.turn import Turn

T = TypeVar("T")


class ReadingRoom:
    """`turn`: that of trials, in the engine or here. `on_free`: called when a trial here is over."""

    def __init__(self, turn: Turn, on_free: Callable[[], None]) -> None:
        self._turn = turn
        self._on_free = on_free
        self._inside = 0
        self._closed = False
        self._moved = asyncio.Event()

    async def together(self, read: Callable[[], Awaitable[T]]) -> T:
        """Beside others."""
        await self._until(lambda: not self._closed)
        self._inside += 1
        try:
            return await read()
        finally:
            self._inside -= 1
            self._moved.set()

    @contextlib.asynccontextmanager
    async def alone(self, over: Callable[[], bool]) -> AsyncIterator[None]:
        """While nobody else reads, and no trial is on in the engine; or as soon as it is `over`, and nothing
        is to be read any more."""
        reader = object()
        await self._turn.wait(reader, over)
        if over():
            self._turn.give_back(reader)
            yield
            return
        self._closed = True
        try:
            await self._until(lambda: not self._inside)
            yield
        finally:
            self._closed = False
            self._moved.set()
            self._turn.give_back(reader)
            self._on_free()

    def look_again(self) -> None:
        """It may be over for one that waits to be alone."""
        self._turn.look_again()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()
