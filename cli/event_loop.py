"""The event loop of the services: one of libuv, whose turns cost about half of asyncio's own in Python."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.gpu_engine.garbage import collect_rarely


def run_service(work: Coroutine[Any, Any, int]) -> int:
    """Runs a service to its end; returns its exit status."""
    collect_rarely()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: asyncio's own, on systems that have no uvloop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    from uvloop import new_event_loop

    return new_event_loop
