"""Gives a consumer another wall clock: read by Python at the start of every child of a test's stack.

The file that HEADRACE_TEST_CLOCK names holds an offset in seconds; while it changes, the clock jumps. Only
consumers are given one, and only their wall clock: `time.monotonic` is what it was, as on a real machine.
"""

import os
import sys
import time
from pathlib import Path

_real_time, _real_time_ns = time.time, time.time_ns
_file = Path(os.environ.get("HEADRACE_TEST_CLOCK", ""))


def _offset_s() -> int:
    try:
        return int(_file.read_text())
    except OSError:
        return 0


if "consumer" in sys.orig_argv:
    time.time = lambda: _real_time() + _offset_s()
    time.time_ns = lambda: _real_time_ns() + _offset_s() * 1_000_000_000
