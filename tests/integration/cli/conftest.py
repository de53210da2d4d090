from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import bound_to_us, kept

SIM = ("--engine", "sim", "--sim-first-token-ms", "1", "--sim-step-ms", "1")
PATIENCE_S = 60.0

Spawn = Callable[..., "subprocess.Popen[str]"]


def chat_line(number: int, max_tokens: int = 8) -> str:
    messages = [{"role": "user", "content": f"Question {number}"}]
    body = {"messages": messages, "max_tokens": max_tokens, "seed": number}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)


def write_input(path: Path, lines: int, max_tokens: int = 8) -> Path:
    path.write_text("".join(chat_line(number, max_tokens) + "\n" for number in range(lines)))
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def eventually(holds: Callable[[], object], what: str) -> None:
    """Waits for something another process does."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    """Starts `headrace …` in the test's folder; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
        variables = {**os.environ, "HEADRACE_LOG_LEVEL": "WARNING", **environment}
        process = kept(
            lambda: subprocess.Popen(
                [sys.executable, "-m", "headrace.cli.main", *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=tmp_path,
                env=bound_to_us(variables),
            )
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()
