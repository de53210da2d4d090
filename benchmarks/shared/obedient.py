"""A process that obeys one line at a time on its stdin, and answers each with one line of JSON."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

from benchmarks.shared.report import CannotRun


class Obedient:
    """`last_words`: what the process said, for the reason of its death."""

    def __init__(self, process: subprocess.Popen[str], last_words: Callable[[], str]) -> None:
        self._process, self._last_words = process, last_words

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> dict[str, Any]:
        """Its answer; raises CannotRun where it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self.listen()

    def listen(self) -> dict[str, Any]:
        """The next line that it says."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise self._ended()
        told: dict[str, Any] = json.loads(answer)
        return told

    def _ended(self) -> CannotRun:
        return CannotRun(f"it ended: {self._last_words()}")
