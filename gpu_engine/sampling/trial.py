"""The process in which grammars are tried before an engine compiles them.

llguidance bounds most of what a grammar may cost, but not all: where a schema asks for several patterns at
once it may take hours, and gigabytes, and a thread that runs native code cannot be stopped. A process can.

    engine ── vocabulary, grammars ──► compiles each, within limits on processor time and memory
           ◄── a line for each ──────  dies of one that is too expensive
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.sampling.guide import GuideMaker, Vocabulary

MOST_S: Final = 5
"""Processor time for one grammar; usual ones take milliseconds."""

MOST_BYTES: Final = 1 << 30
"""Memory for grammars, beside what the vocabulary takes."""


def main() -> None:
    """Reads lines until there are no more: a vocabulary, then grammars. Writes one when it is ready, and one
    for each grammar that can be had, or is refused, at a price that an engine can pay."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, whose end closes the lines
    lines = sys.stdin.buffer
    vocabulary = msgspec.json.decode(lines.readline(), type=Vocabulary)
    guides = GuideMaker(vocabulary.tokenizer_json, vocabulary.size, vocabulary.eos_ids)
    guides.prepare()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _bound_memory()
    print("ready", flush=True)
    for line in lines:
        _bound_time()
        with contextlib.suppress(BaseException):  # the engine will see the same, and tell of it
            guides.compile(msgspec.json.decode(line, type=Grammar))
        print("tried", flush=True)


def _bound_time() -> None:
    """The kernel ends the process that takes more."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(spent.ru_utime + spent.ru_stime) + 1 + MOST_S)


def _bound_memory() -> None:
    """What asks for more gets none, and native code dies of that."""
    with contextlib.suppress(OSError):  # elsewhere than on Linux time alone is bounded
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + MOST_BYTES)


def _lower(kind: int, limit: int) -> None:
    """The hard limit stays, since the soft one is raised again for the next grammar."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


if __name__ == "__main__":
    main()
