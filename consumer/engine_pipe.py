"""Our end of the pipe to an engine, driven by the event loop: no thread, and it never blocks.

    send ──► outgoing, all of one turn of the loop in one write ──► socket ──► engine
    take ◄── incoming, whole frames ◄── as much as there is, while it is wanted ◄──┘

The other end is a `multiprocessing` connection, whose framing this keeps. Threads at both directions would
do, but each message would wake one up and both would wait for the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from headrace.gpu_engine.frames import Frames, header

_CHUNK = 1 << 18


class EnginePipe:
    """`on_change` is called when frames have arrived or the other end is gone. What is sent is bounded by
    the caller, what arrives by `wanted`. Made in the running event loop."""

    def __init__(self, connection: Connection[Any, Any], on_change: Callable[[], None]) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._incoming = Frames()
        self._outgoing = bytearray()
        self._flushing = False  # a flush is scheduled, or waits for the socket
        self._wanted = False
        self.ended = False  # nothing more will arrive
        os.set_blocking(self._fd, False)
        self.want(True)

    def send(self, frame: bytes) -> None:
        """Goes out at the end of this turn of the loop, and nowhere when the other end is gone."""
        if self.ended:
            return
        self._outgoing += header(len(frame))
        self._outgoing += frame
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def take(self) -> bytes | None:
        """The next whole frame, if it has arrived."""
        return self._incoming.take()

    def want(self, wanted: bool) -> None:
        """Whether to read on; unread, the other end waits in its write."""
        if wanted and not self._wanted and not self.ended:
            self._loop.add_reader(self._fd, self._read)
        elif self._wanted and not wanted:
            self._loop.remove_reader(self._fd)
        self._wanted = wanted and not self.ended

    def read_rest(self) -> None:
        """Reads what a dead process has left, and ends."""
        with contextlib.suppress(BlockingIOError):
            while not self.ended and self._read_some():
                pass
        self._end()

    def close(self) -> None:
        self._end()
        self._connection.close()

    def _read(self) -> None:
        try:
            more = self._read_some()
        except BlockingIOError:
            return  # woken for nothing
        if not more:
            self._end()
        self._on_change()

    def _read_some(self) -> bool:
        """False: nothing more will come. Raises BlockingIOError where there is nothing now."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            raise
        except OSError:
            return False
        self._incoming.feed(data)
        return bool(data)

    def _flush(self) -> None:
        if self.ended:
            return
        try:
            written = os.write(self._fd, self._outgoing)
        except BlockingIOError:
            written = 0
        except OSError:  # the other end is gone, reading will tell
            written = len(self._outgoing)
        del self._outgoing[:written]  # cheap at the front of a bytearray, however much is left
        if self._outgoing:
            self._loop.add_writer(self._fd, self._flush)
            return
        self._loop.remove_writer(self._fd)
        self._flushing = False

    def _end(self) -> None:
        self.want(False)
        if not self.ended:
            self.ended = True
            self._outgoing.clear()
            self._loop.remove_writer(self._fd)
