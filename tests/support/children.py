"""Processes of ours that end with the tests, even where these are killed.

`headrace` does so where HEADRACE_PARENT names the process that must not be outlived: the kernel ends it with
the *thread* that started it, so each one gets a thread that lives as long as it does.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import AnyStr


def bound_to_us(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """These variables (or our own), and the one that binds a `headrace` to this process."""
    variables = os.environ if environment is None else environment
    return {**variables, "HEADRACE_PARENT": str(os.getpid())}


def kept(start: Callable[[], subprocess.Popen[AnyStr]]) -> subprocess.Popen[AnyStr]:
    """Starts a process that is bound to us."""
    started: queue.SimpleQueue[subprocess.Popen[AnyStr] | OSError] = queue.SimpleQueue()

    def keep() -> None:
        try:
            process = start()
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    threading.Thread(target=keep, name="keeper", daemon=True).start()
    process = started.get()
    if isinstance(process, OSError):
        raise process
    return process
