"""What tests with stock clients share: where the clients are, a service, and the lines that they send."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.children import bound_to_us, kept
from tests.support.kafka_server import missing

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
SIM = ("--engine", "sim", "--sim-first-token-ms", "5", "--sim-step-ms", "2")


def find_client(name: str) -> str:
    """The program on the PATH, or where `tests/tools.sh` unpacks it; else the test is skipped, loudly."""
    found = shutil.which(name) or shutil.which(name, path=str(ROOT / ".cache" / "tools" / "bin"))
    return found or missing(f"NO {name.upper()}, SO THIS IS NOT TESTED: tests/tools.sh brings it")


@contextmanager
def service(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """`headrace up` with simulated engines; yields what its ready file says, and drains it."""
    ready_file = folder / "ready.json"
    command = [sys.executable, "-m", "headrace.cli.main", "up", *SIM, "--grpc-port", "0"]
    places = ["--data-dir", str(folder / "data"), "--ready-file", str(ready_file)]
    with (folder / "log").open("wb") as log:
        argv, env = [*command, *places, *options], bound_to_us()
        process = kept(lambda: subprocess.Popen(argv, stdout=log, stderr=log, env=env))
    try:
        eventually(lambda: ready_file.exists() or process.poll() is not None, "the service")
        assert process.poll() is None, (folder / "log").read_text()
        yield json.loads(ready_file.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, (folder / "log").read_text()
    finally:
        process.kill()
        process.wait()


def eventually(holds: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Waits for something that another process does."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def chat_line(custom_id: str, max_tokens: int = 8) -> str:
    """A line of OpenAI's batch format."""
    body = {"messages": [{"role": "user", "content": f"Say {custom_id}"}], "max_tokens": max_tokens}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line)


def check_answers(lines: Sequence[str], custom_ids: Sequence[str]) -> None:
    """One output line of OpenAI's batch format for each request, and no other."""
    answers = [json.loads(line) for line in lines]
    assert sorted(answer["custom_id"] for answer in answers) == sorted(custom_ids)
    for answer in answers:
        assert answer["error"] is None, answer
        assert answer["response"]["status_code"] == 200
        assert answer_text(answer)


def sorted_out(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Answers, and lines that tell of an error."""
    good = [line for line in lines if json.loads(line)["response"]["status_code"] == 200]
    return good, [line for line in lines if line not in good]


def answer_text(answer: dict[str, Any]) -> str:
    text: str = answer["response"]["body"]["choices"][0]["message"]["content"]
    return text


def streamed_text(chunks: Sequence[str]) -> str:
    """What a reader of a reply topic shows in the end, by the rule that `lines.output.chunk_line` states."""
    text, highest = "", (0, -1)
    for line in chunks:
        chunk = json.loads(line)
        assert chunk["object"] == "chat.completion.chunk"
        if (chunk["epoch"], chunk["seq"]) > highest:
            highest = (chunk["epoch"], chunk["seq"])
            text = text[: chunk["offset"]] + chunk["choices"][0]["delta"]["content"]
    return text
