"""How the services run: on an event loop of libuv, whose turns cost about half of asyncio's own, which no
other thread keeps waiting for long."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

# For how long a thread may keep the interpreter while another one waits. kafka-python's clients run on
# threads, in pure Python: with Python's 5 ms, a token that passes four of them waits longer than it travels.
SWITCH_S: Final = 0.0005


def run_service(work: Coroutine[Any, Any, int]) -> int:
    """Runs a service to its end; returns its exit status."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None: asyncio's own, on systems that have no uvloop."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    from uvloop import new_event_loop

    return new_event_loop
