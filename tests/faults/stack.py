"""A running `headrace up`, seen from outside: its endpoints, its processes, and ways to hurt them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Stack:
    """`pids(kind)` reads the ready file anew, since the stack replaces what was killed."""

    process: subprocess.Popen[bytes]
    ready_file: Path
    log_file: Path
    frozen: list[int] = field(default_factory=list)

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
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self, pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        self.frozen.append(pid)

    def thaw(self, pid: int) -> None:
        self.frozen.remove(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


@contextlib.contextmanager
def running_stack(folder: Path, *options: str, consumers: int = 2, lease_s: float = 2) -> Iterator[Stack]:
    """Starts `headrace up` with its data in `folder`, waits until it is healthy, and drains it at the end."""
    ready_file, log_file = folder / "ready.json", folder / "up.log"
    command: list[str | Path] = [
        Path(sys.executable).parent / "headrace",
        "up",
        *("--ready-file", ready_file, "--data-dir", folder / "data", "--grpc-port", "0"),
        *("--consumers", str(consumers), "--lease", str(lease_s)),
        *options,
    ]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    stack = Stack(process, ready_file, log_file)
    try:
        _await_ready(stack)
        yield stack
    finally:
        for pid in list(stack.frozen):
            stack.thaw(pid)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"`headrace up` did not drain within 30 s:\n{stack.log()[-3000:]}") from None


def _await_ready(stack: Stack, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not stack.ready_file.exists():
        if stack.process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"`headrace up` did not come up:\n{stack.log()[-3000:]}")
        time.sleep(0.05)
