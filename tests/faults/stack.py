"""A running `headrace up`, seen from outside: its endpoints, its processes, and ways to hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.children import bound_to_us, kept
from tests.support.frozen import freeze

HEADRACE = Path(sys.executable).parent / "headrace"
BLOB_THRESHOLD = 2_000  # bytes
_DRAIN_S = 30.0


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def pid_of(consumer: str) -> int | None:
    """The process id in a consumer's name: host, pid, random digits."""
    parts = consumer.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() else None


def engine_of(consumer: int) -> int | None:
    """The engine's process of a consumer, as the kernel knows it: a ready file may be a moment behind."""
    for children in Path(f"/proc/{consumer}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in map(int, children.read_text().split()):
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
    return None


@dataclass
class Stack:
    """`pids(kind)` reads the ready file anew, since the stack replaces what was killed. `kills`: when which
    process was killed, by our monotonic clock. `store`: where large bodies lie."""

    process: subprocess.Popen[bytes]
    ready_file: Path
    log_file: Path
    folder: Path
    environment: Mapping[str, str]
    store: Path
    frozen: list[int] = field(default_factory=list)
    kills: list[tuple[float, int]] = field(default_factory=list)
    extra: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ready(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.ready_file.read_text())
        return loaded

    @property
    def grpc(self) -> str:
        return str(self.ready()["grpc"])

    @property
    def broker(self) -> str:
        return str(self.ready()["broker"])

    def pids(self, kind: str) -> list[int]:
        return [pid for pid in self.ready()["pids"][kind] if alive(pid)]

    def kill(self, pid: int) -> None:
        self.kills.append((time.monotonic(), pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            freeze(pid)
            self.frozen.append(pid)

    def thaw(self, pid: int) -> None:
        if pid in self.frozen:
            self.frozen.remove(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def start_beside(
        self, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Another process of ours in the same installation; it is drained with the stack."""
        variables = {**self.environment, **(environment or {})}
        process = _start([HEADRACE, *arguments], self.log_file, self.folder, variables)
        self.extra.append(process)
        return process

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def drain(self) -> None:
        """Ends everything in order, once; raises where something does not end."""
        for pid in list(self.frozen):
            self.thaw(pid)
        for process in (*self.extra, self.process):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in (*self.extra, self.process):
            try:
                process.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                message = f"no drain within {_DRAIN_S:.0f} s:\n{self.log()[-3000:]}"
                raise AssertionError(message) from None


@contextlib.contextmanager
def running_stack(
    folder: Path,
    *options: str,
    consumers: int = 2,
    lease_s: float = 2,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Stack]:
    """Starts `headrace up` with its data in `folder`, waits until it is healthy, and drains it at the end."""
    ready_file, log_file = folder / "ready.json", folder / "up.log"
    command: list[str | Path] = [
        *(HEADRACE, "up", "--ready-file", ready_file, "--data-dir", folder / "data", "--grpc-port", "0"),
        *("--consumers", str(consumers), "--lease", str(lease_s), "--grace", "5"),
        *("--blob-threshold", str(BLOB_THRESHOLD)),
        *options,
    ]
    store = folder / "blobs"
    store.mkdir()
    variables = {**os.environ, **(environment or {}), "HEADRACE_BLOBS": str(store)}
    process = _start(command, log_file, folder, variables)
    stack = Stack(process, ready_file, log_file, folder, variables, store)
    try:
        _await_ready(stack)
        yield stack
    finally:
        stack.drain()


def _start(
    command: Sequence[str | Path], log_file: Path, folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with log_file.open("ab") as log:
        env = bound_to_us(environment)
        return kept(lambda: subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=env))


def _await_ready(stack: Stack, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not stack.ready_file.exists():
        if stack.process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"`headrace up` did not come up:\n{stack.log()[-3000:]}")
        time.sleep(0.05)
