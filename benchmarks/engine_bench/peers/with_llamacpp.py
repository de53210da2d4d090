"""llama.cpp's server with --slots slots, asked over HTTP on loopback."""

from __future__ import annotations

import argparse
import atexit
import ctypes
import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from obeying import Answer, Row, obey, parser

LONGEST = 640  # tokens of a request, prompt and answer


def load(options: argparse.Namespace) -> Answer:
    port = free_port()
    server = subprocess.Popen(arguments(options, port), stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    atexit.register(server.terminate)
    while not is_up(port):
        if server.poll() is not None:
            raise SystemExit(f"llama-server ended with {server.returncode}")
        time.sleep(0.1)

    def answer(rows: list[Row]) -> int:
        with ThreadPoolExecutor(len(rows)) as callers:
            return sum(callers.map(lambda row: complete(port, row), rows))

    return answer


def die_with_parent() -> None:
    """However this process ends: Linux's PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def arguments(options: argparse.Namespace, port: int) -> list[str]:
    numbers = {
        "--threads": options.threads,
        "--threads-batch": options.threads,
        "--parallel": options.slots,
        "--ctx-size": LONGEST * options.slots,
        "--ubatch-size": options.step_budget,
        "--port": port,
        "--cache-ram": 0,
    }
    listed = [str(word) for pair in numbers.items() for word in pair]
    return [str(options.server), "--model", str(options.model), "--host", "127.0.0.1", "--no-webui", *listed]


def complete(port: int, row: Row) -> int:
    body = {
        "prompt": row.prompt,
        "n_predict": row.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
        "samplers": ["top_k"],
        "top_k": 1,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    return int(json.loads(connection.getresponse().read())["tokens_predicted"])


def is_up(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    options = parser()
    options.add_argument("--server", type=Path, required=True, help="llama-server")
    obey(options.parse_args(), load)
