"""The event loop of the services: one of libuv, whose turns cost about half of asyncio's own in Python."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from headrace.gpu_engine.garbage import collect_rarely

TURN_S: Final = 0.001


def run_service(work: Coroutine[Any, Any, int], *, turn_s: float | None = None) -> int:
    """Runs a service to its end; returns its exit status. `turn_s`: after how long a thread that computes
    lets another one go on; None: Python's own 5 ms. A Kafka client's threads compute for milliseconds, for
    which a stream waits: at 1 ms (`TURN_S`) the slowest of a gateway's tokens come half as late. More turns
    cost a consumer a fifth of its throughput."""
    collect_rarely()
    with _turns_of(turn_s), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


@contextlib.contextmanager
def _turns_of(turn_s: float | None) -> Iterator[None]:
    """The interval is the whole process's: what else runs in it finds it again as it was."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(turn_s or before)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: asyncio's own, on systems that have no uvloop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    from uvloop import new_event_loop

    return new_event_loop
