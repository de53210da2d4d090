"""What all embedded servers need of their data folder and their ports, and how they say that it is not so."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType

from headrace.broker.errors import BrokerError

LOOPBACK = "127.0.0.1"
_LOCK_PATIENCE_S = 3.0  # a server whose parent was just killed needs a moment to die
# Below the range from which systems take ports for outgoing connections. In it, a client that tries again
# and again to reach a server that is down ends up connected to itself, and the server finds its port taken.
_SERVER_PORTS = range(20_000, 30_000)
_PORT_ATTEMPTS = 100


class EmbeddedUnusable(BrokerError):
    """The embedded server cannot run; the text says why and what to do."""


class FolderLock:
    """One server per folder. The lock is on an open file that the server inherits, so it is held exactly as
    long as the server lives, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = -1

    def acquire(self) -> None:
        """Takes the lock; raises EmbeddedUnusable where another server holds it."""
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.read(self.descriptor, 20).decode(errors="replace")
                    self.release()
                    raise EmbeddedUnusable(
                        f"another server (process {holder or 'unknown'}) uses {self._path.parent}; "
                        "stop it or choose another folder"
                    ) from None
                time.sleep(0.02)

    def sign(self, pid: int) -> None:
        """Leaves the holder's process id for the message above."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, str(pid).encode(), 0)

    def release(self) -> None:
        """Closes our end; servers that inherited it hold the lock on."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def probe_writing(folder: Path) -> None:
    """Raises OSError now, where the server would fail later and say less."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(bytes(64 << 10))
        probe.flush()
        os.fsync(probe.fileno())


def explain(error: OSError, folder: Path) -> str:
    """One sentence on why `folder` cannot be used."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {folder} is full; free some space, or choose another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the folder {folder} cannot be written to; change its rights, or choose another folder"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{folder} cannot be used as a folder, a file is in the way; choose another folder"
    return f"the folder {folder} cannot be used ({error.strerror or error}); choose another folder"


def ended_early(server: str, status: int, log: Path) -> str:
    """One sentence on a server that ended before it served, for a reason that we do not know from its log.
    `status`: its exit status; below 0: the signal that killed it."""
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
        how = f"was killed ({name}) while it started, by the system for want of memory, or by somebody"
    else:
        how = f"did not start (status {status})"
    return (
        f"{server} {how}; see {log}, look whether disk and memory have room and its port is free, "
        "and start it again"
    )


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    for port in random.sample(_SERVER_PORTS, _PORT_ATTEMPTS):
        if port_is_free(port):
            return port
    raise EmbeddedUnusable("no free loopback port was found; name one")


def port_is_free(port: int) -> bool:
    """Whether a server could listen there; remains of closed connections do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
