"""Processes seen through `/proc`: their CPU time, their memory, and a stop that holds them where they are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20
_PR_SET_PDEATHSIG = 1


def family(pid: int) -> list[int]:
    """The process and all that it started, oldest first."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):  # any thread may have started some
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far; a process that is gone counts nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def rss_mib(pid: int) -> float:
    """Resident memory of one process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def peak_rss_mib(pids: Iterable[int]) -> float:
    """The most that each of them was resident with, added up; a process that is gone counts nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return total / 1024


def available_mib() -> float:
    """Memory that could be had without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


@contextlib.contextmanager
def held(pids: Sequence[int]) -> Iterator[None]:
    """Stops the processes where they are; they go on at the end of the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def running(
    argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process whose output goes to `log`; SIGTERM at the end, SIGKILL to its whole family where that is
    not enough, or where this process dies before. Its stdin and stdout are pipes for whoever talks to it."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            cwd=cwd,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    try:
        yield process
    finally:
        members = family(process.pid)
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pid in members[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def wait_until(true: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    """Polls; TimeoutError names what did not happen."""
    end = time.monotonic() + limit_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {limit_s:.0f} s")
        time.sleep(0.02)


def last_words(log: Path, length: int = 300) -> str:
    """The end of what a process said, on one line."""
    return " ".join(log.read_text(errors="replace").split())[-length:]
