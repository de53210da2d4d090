"""The threads of one engine."""

from __future__ import annotations

import ctypes
import weakref


class Pool:
    """`threads` threads, the caller among them; see `kernels/cpu/pool.h`. `pin` keeps each on a core of its
    own, the calling thread, too: for a process that does nothing else."""

    def __init__(self, threads: int, *, kernels: ctypes.CDLL, pin: bool = False) -> None:
        self.kernels = kernels
        self.handle = ctypes.c_void_p(kernels.headrace_pool(threads, int(pin)))
        self._finalizer = weakref.finalize(self, kernels.headrace_free_pool, self.handle)

    def close(self) -> None:
        """Ends the threads. They end with the object, too."""
        self._finalizer()
