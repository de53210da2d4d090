"""Grammars that have been tried in another process; see `trial`."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from multiprocessing.connection import wait
from typing import Final, Protocol

import msgspec

from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.sampling.guide import Compiled, GrammarError, GuideMaker, Vocabulary
from headrace.gpu_engine.sampling.trial import MOST_BYTES, MOST_S

MODULE: Final = "headrace.gpu_engine.sampling.trial"

LONGEST_S: Final = 8.0
"""For one grammar by the clock, on a busy machine: less than a request waits for its own, lest those behind
it wait in vain."""

START_S: Final = 60.0

_LOG: Final = logging.getLogger(__name__)


class Trial(Protocol):
    def survives(self, grammar: Grammar) -> bool:
        """Whether compiling it has a bounded price."""


class TriedGrammars:
    """The grammars of `guides`, none of which is compiled here if a process died of it."""

    def __init__(self, guides: GuideMaker, trial: Trial) -> None:
        self._guides, self._trial = guides, trial

    def knows(self, grammar: Grammar) -> bool:
        return self._guides.knows(grammar)

    def compile(self, grammar: Grammar) -> Compiled:
        """As `GuideMaker.compile`."""
        if self._trial.survives(grammar):
            return self._guides.compile(grammar)
        return GrammarError(
            f"it takes more than {MOST_S} s of processor time, or {MOST_BYTES >> 20} MiB of memory, to "
            "compile; make it smaller, with fewer patterns that hold at once"
        )

    def keep(self, grammar: Grammar, compiled: Compiled) -> None:
        self._guides.keep(grammar, compiled)


class TrialProcess:
    """Tries one grammar after the other, for any thread, in a process that is started when it is needed, and
    anew when it has died. It ends with this one, whose end of the pipe closes then."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Has it ready for the first grammar, and does not wait for it."""
        threading.Thread(target=self._start, name="headrace-trial", daemon=True).start()

    def _start(self) -> None:
        with self._lock:
            self._running()

    def survives(self, grammar: Grammar) -> bool:
        with self._lock:
            process = self._running()
            if process is None:
                return True  # nobody can say
            return bool(_ask(process, grammar, LONGEST_S))

    def close(self) -> None:
        """Ends the process, whatever it does."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.communicate()
                self._process = None

    def _running(self) -> subprocess.Popen[bytes] | None:
        """None where it cannot be started."""
        if self._process is None or self._process.poll() is not None:
            self._process = _open_process(self._vocabulary)
        return self._process


def _open_process(vocabulary: Vocabulary) -> subprocess.Popen[bytes] | None:
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        if _ask(process, vocabulary, START_S):
            return process
        _LOG.error("grammars cannot be tried, and are compiled as they come")
    except OSError:
        _LOG.exception("grammars cannot be tried, and are compiled as they come")
    return None


def _ask(process: subprocess.Popen[bytes], message: msgspec.Struct, patience_s: float) -> bytes:
    """Its answer; empty where it has died, if only of taking longer than that."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(message) + b"\n")
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    answer = process.stdout.readline() if wait([process.stdout.fileno()], patience_s) else b""
    if not answer:
        process.kill()
        process.wait()
    return answer
