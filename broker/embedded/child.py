"""A child process that dies with its parent.

The kernel ends the child when the *thread* that started it ends (PR_SET_PDEATHSIG), so each child gets a
thread of its own that lives as long as it does. The signal is set by a small Python that then becomes the
program: code between fork and exec in a process with threads may deadlock.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

_TRAMPOLINE = """
import os, signal, sys
parent, program = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    os._exit(1)
os.execv(program[0], program)
"""


class Child:
    """A running child process; `pid` stays the same when the trampoline becomes the program."""

    def __init__(self, program: Sequence[str], output: IO[bytes], keep_open: Sequence[int] = ()) -> None:
        """Starts `program` (absolute path, arguments). `keep_open`: file descriptors it inherits. Raises
        OSError where that is impossible."""
        self._program, self._output, self._keep_open = tuple(program), output, tuple(keep_open)
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        self._keeper = threading.Thread(target=self._keep, args=(started,), name="keeper", daemon=True)
        self._keeper.start()
        process = started.get()
        if isinstance(process, OSError):
            raise process
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """Its exit status, below 0 the signal that killed it; None while it runs."""
        return self._process.poll()

    def wait(self) -> None:
        self._process.wait()

    def stop(self, patience_s: float) -> None:
        """Asks it to end, and insists after `patience_s`."""
        if self.alive:
            self._process.terminate()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._keeper.join()

    def _keep(self, started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError]) -> None:
        try:
            process = self._spawn()
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", "-S", "-c", _TRAMPOLINE, str(os.getpid()), *self._program]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            pass_fds=self._keep_open,
            start_new_session=True,
        )
