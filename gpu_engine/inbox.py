"""What arrives on a connection, all of it at a time.

`Connection.recv_bytes` reads one message in two system calls, and `poll` builds a selector for each: for an
engine that hears hundreds of small messages between two steps, that is more than it does with them.
"""

from __future__ import annotations

import os
import select
from multiprocessing.connection import Connection
from typing import Any

from headrace.gpu_engine.frames import Frames

_PIECE = 1 << 18


class Inbox:
    """The reading side of `connection`, which nobody else reads. Blocks for no longer than it is told to."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._fd = connection.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._frames = Frames()

    def receive(self, patience_s: float) -> list[bytes]:
        """All messages that have arrived; waits up to `patience_s` for something. Raises EOFError once the
        other end is gone: what it said last is nobody's wish any more."""
        while self._poll.poll(round(patience_s * 1000)):
            self._frames.feed(self._read())
            patience_s = 0.0
        return list(iter(self._frames.take, None))

    def _read(self) -> bytes:
        try:
            data = os.read(self._fd, _PIECE)
        except ConnectionError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        return data
