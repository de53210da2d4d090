"""A child process that does not outlive its parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
_PR_SET_NAME: Final = 15


def die_with(parent_pid: int, name: bytes | None = None) -> None:
    """On Linux the kernel kills this process with the thread of `parent_pid` that started it, and tools show
    it as `name` (at most 15 bytes). Exits at once where the parent has ended already. Elsewhere it only does
    the latter: the end of a connection must do."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if name is not None:
            libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit("the process that this one was to serve ended before it had started")
