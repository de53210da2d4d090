"""The threads of one engine."""

from __future__ import annotations

import ctypes
import weakref

from headrace.gpu_engine.native.library import library


class Pool:
    """`threads` threads, the caller among them; see `kernels/cpu/pool.h`. `pin` keeps each on a core of its
    own, the calling thread, too: for a process that does nothing else."""

    def __init__(self, threads: int, *, pin: bool = False) -> None:
        loaded = library()
        assert loaded is not None, "ask whether the kernels are available first"
        self.kernels: ctypes.CDLL = loaded
        self.handle = ctypes.c_void_p(loaded.headrace_pool(threads, int(pin)))
        self._finalizer = weakref.finalize(self, loaded.headrace_free_pool, self.handle)

    def close(self) -> None:
        """Ends the threads. They end with the object, too."""
        self._finalizer()
