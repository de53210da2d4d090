"""Between the event loop and threads that may block for as long as the broker is away.

The threads are daemons: a process that ends does not wait for a call that is stuck, and a loop that is gone
is no error for a thread that has something to tell it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *args: object) -> bool:
    """Has `call` run on the loop soon; may be called from any thread. False: the loop is gone."""
    try:
        loop.call_soon_threadsafe(call, *args)
    except RuntimeError:  # closed
        return False
    return True


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Unless whoever waited has gone."""
    if not future.done():
        future.set_result(result)


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


class Worker:
    """One daemon thread that makes blocking calls, one after the other."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, call: Callable[[], T]) -> T:
        """The result of `call`, or what it raised. It runs to its end even where nobody waits any more."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(lambda: _answer(loop, future, call))
        return await future

    def stop(self) -> None:
        """Ends the thread after the calls that wait. Does not wait for it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _answer(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], call: Callable[[], T]) -> None:
    try:
        result = call()
    except BaseException as error:
        tell(loop, fail, future, error)
    else:
        tell(loop, resolve, future, result)
