"""What Ctrl-C does, and when.

    start ──► imports ──► command ──► exit
      └─ ends at once ─┘ └ raises ┘ └ ends at once

While modules are brought in there is nothing to tidy up, and a KeyboardInterrupt would come out of the middle
of somebody's import. In the command it is Python's own, since asyncio builds on that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED_STATUS = 130  # as shells say it


def end_at_interrupts() -> None:
    """From now on Ctrl-C ends this process without a word. It stays ignored where whoever started us wants
    it so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextmanager
def raised_interrupts() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt; behind, it is what it was before."""
    before = signal.getsignal(signal.SIGINT)
    if before is not _end:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(_: int, __: FrameType | None) -> None:
    os._exit(INTERRUPTED_STATUS)
