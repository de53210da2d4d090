"""Calls that block, and may hang for ever, off the event loop.

Each runs in a daemon thread of its own, so one that hangs holds up neither the end of the process (which
joins the threads of an executor) nor what else needs `asyncio.to_thread`. A few run at a time; one that hangs
keeps its place until it is over, so threads stay bounded, and who finds no place in time has waited enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class BlockingCalls:
    """`at_most` at a time, each waited for `patience_s` seconds, its wait for a place included. Used in one
    event loop."""

    def __init__(self, name: str, *, at_most: int, patience_s: float) -> None:
        self._name = name
        self._patience_s = patience_s
        self._places = asyncio.Semaphore(at_most)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, or TimeoutError; then the thread goes on alone."""
        async with asyncio.timeout(self._patience_s):
            await self._places.acquire()
            result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            self._start(work, result)
            return await result

    def _start(self, work: Callable[[], T], result: asyncio.Future[T]) -> None:
        thread = threading.Thread(target=self._call, args=(work, result), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no room for one more: the next call may find some
            self._places.release()
            raise

    def _call(self, work: Callable[[], T], result: asyncio.Future[T]) -> None:
        try:
            value = work()
        except Exception as error:
            tell = functools.partial(result.set_exception, error)
        else:
            tell = functools.partial(result.set_result, value)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            result.get_loop().call_soon_threadsafe(self._over, result, tell)

    def _over(self, result: asyncio.Future[T], tell: Callable[[], None]) -> None:
        self._places.release()
        if not result.done():  # else whoever asked is gone
            tell()
