"""OUT: the file of result lines, valid after every kill.

It is only ever appended to, in groups of whole lines with one `fsync` each. What a kill leaves behind is
at most one torn line at the end, which the next start cuts off. A group that cannot be written (the disk
is full) is taken back whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from headrace.producer.file_run.options import FileRunError
from headrace.producer.file_run.outcome import Outcome, read_outcome

_LONGEST_RESULT = 256 << 20
_HEAD = b'{"id":"batch_req_'
_FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputFile:
    """An exclusive hold on OUT. `append` may run in a thread; `close` waits for it, and removes an OUT that
    was made here and of which nobody said that it shall stay (`keep`)."""

    def __init__(self, path: Path, descriptor: int, made: bool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._unwanted = made
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens OUT, or creates it empty; FileRunError says what is in the way."""
        if not path.parent.is_dir():
            raise FileRunError(f"there is no folder {path.parent}; create it, or choose another output file")
        try:
            descriptor, made = _open_or_make(path)
        except OSError as error:
            raise FileRunError(
                f"cannot write {path}: {error.strerror}; choose another output file"
            ) from error
        out = cls(path, descriptor, made)
        try:
            _check_usable(path, descriptor)
            sync_folder(path)
        except BaseException:
            out.close()
            raise
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of OUT, once an append that is under way in a thread has ended."""
        with self._lock:
            if self._closed:
                return
            if self._unwanted:
                self._path.resolve().unlink(missing_ok=True)  # still locked: nobody else has begun with it
            os.close(self._descriptor)
            self._closed = True

    def keep(self) -> None:
        """From now on OUT stays, even empty."""
        self._unwanted = False

    def recover(self) -> Iterator[Outcome]:
        """Yields what OUT holds already; then, if its reader has raised nothing, cuts a torn last line off.
        FileRunError, and OUT untouched, where it holds anything that no run has written."""
        good = 0
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with open(self._descriptor, "rb", closefd=False) as file:
            while raw := file.readline(_LONGEST_RESULT):
                outcome = read_outcome(raw) if raw.endswith(b"\n") else None
                if outcome is None:
                    break
                good += len(raw)
                yield outcome
        if raw:
            self._cut_torn_line(raw, good)

    def append(self, lines: Sequence[bytes]) -> None:
        """Makes lines (without newlines) durable, all or none of them."""
        data = b"".join(line.replace(b"\n", b" ") + b"\n" for line in lines)
        with self._lock:
            if self._closed:
                return
            start = os.lseek(self._descriptor, 0, os.SEEK_END)
            try:
                _write_all(self._descriptor, data)
                os.fsync(self._descriptor)
            except OSError as error:
                with contextlib.suppress(OSError):  # where even this fails, the next start cuts the torn line
                    os.ftruncate(self._descriptor, start)
                raise write_error(self._path, error) from error

    def _cut_torn_line(self, raw: bytes, good: int) -> None:
        if raw.endswith(b"\n") or not (raw.startswith(_HEAD) or _HEAD.startswith(raw)):
            raise FileRunError(
                f"{self._path} exists and holds something other than results; choose another output file"
            )
        os.ftruncate(self._descriptor, good)


def _open_or_make(path: Path) -> tuple[int, bool]:
    """The descriptor, and whether the file is a new one."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC), False
    except FileNotFoundError:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), True


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def write_error(path: Path, error: OSError) -> FileRunError:
    """The sentence for a write that failed."""
    if error.errno in _FULL:
        return FileRunError(
            f"no space is left to write {path}; free some and start again: the answers so far are kept"
        )
    return FileRunError(f"cannot write {path}: {error.strerror}; start again once that is mended")


def sync_folder(path: Path) -> None:
    """Makes the entry of a new file durable, so that it is there after a power cut, where possible."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check_usable(path: Path, descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise FileRunError(f"{path} is no regular file; a run needs one that it can read again")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FileRunError(f"another run is writing to {path}; wait for it or choose another file") from error
    if os.fstat(descriptor).st_nlink == 0:  # a run that never began has just taken its own OUT away
        raise FileRunError(f"{path} was removed while it was opened; start again")
