"""What is different inside the consumers of a test's stack: read by Python at the start of every child.

HEADRACE_TEST_CLOCK   a file that holds an offset in seconds, by which the wall clock is wrong: when it
                      changes, the clock jumps. `time.monotonic` is what it was, as on a real machine.
HEADRACE_TEST_DEADLY  a word that crashes the interpreter which parses a body that holds it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def _set_clock(file: Path) -> None:
    real_time, real_time_ns = time.time, time.time_ns

    def offset_s() -> int:
        try:
            return int(file.read_text())
        except OSError:
            return 0

    time.time = lambda: real_time() + offset_s()
    time.time_ns = lambda: real_time_ns() + offset_s() * 1_000_000_000


def _plant(word: bytes) -> None:
    from headrace.broker.lines import parse
    from headrace.broker.lines.request import LineError, ParsedRequest
    from headrace.broker.message import Message

    real_parse = parse.parse_message

    def deadly(message: Message) -> ParsedRequest | LineError:
        if word in message.body:
            os.kill(os.getpid(), signal.SIGKILL)
        return real_parse(message)

    parse.parse_message = deadly


if "consumer" in sys.orig_argv:
    if "HEADRACE_TEST_CLOCK" in os.environ:
        _set_clock(Path(os.environ["HEADRACE_TEST_CLOCK"]))
    if "HEADRACE_TEST_DEADLY" in os.environ:
        _plant(os.environ["HEADRACE_TEST_DEADLY"].encode())
