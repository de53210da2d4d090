"""Starts ranks as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import Pipe
from typing import Final

from headrace.gpu_engine.parallel import worker
from headrace.gpu_engine.parallel.worker import Pipe as Connection

MODULE: Final = worker.__name__


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """Implements `Worker`. `released` is set when the process has been waited for."""

    process: subprocess.Popen[bytes]
    connection: Connection
    released: threading.Event = field(default_factory=threading.Event)

    def wait(self, patience_s: float) -> int | None:
        try:
            code = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None
        self.released.set()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.released.set()


def start_workers(count: int) -> Sequence[WorkerProcess]:
    """As many processes, which wait for their first order. Raises OSError where one does not start, and ends
    those that did.

    A thread of each starts it and stays until it has ended: on Linux a child that is to die with its parent
    dies with the thread that started it, and the caller's may be short-lived. They are not started by
    `multiprocessing`, which would run the user's own script in them, and refuses to within a daemonic
    process, such as a consumer's engine.
    """
    started: list[Future[WorkerProcess]] = [Future() for _ in range(count)]
    for one in started:
        threading.Thread(target=_keep, args=(one,), name="headrace-rank", daemon=True).start()
    try:
        return [one.result() for one in started]
    except Exception:
        for one in started:
            if one.exception() is None:
                one.result().kill()
        raise


def _keep(started: Future[WorkerProcess]) -> None:
    try:
        process = _start()
    except Exception as error:
        started.set_exception(error)
        return
    started.set_result(process)
    process.released.wait()


def _start() -> WorkerProcess:
    ours, theirs = Pipe(duplex=True)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # which may be where the answers go
        )
    return WorkerProcess(process, ours)
