"""Which lines of the input are answered, which are under way, and what the answers add up to."""

from __future__ import annotations

import asyncio

from headrace.producer.file_run.outcome import Outcome


class Ledger:
    """One byte a physical line, plus an entry for each request in flight (at most `window`)."""

    def __init__(self, run: str, physical_lines: int, window: int) -> None:
        self.run = run
        self._answered = bytearray(physical_lines + 1)
        self._window = window
        self._in_flight: dict[int, asyncio.Event] = {}
        self._freed = asyncio.Event()
        self.done = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def is_answered(self, line: int) -> bool:
        return bool(self._answered[line])

    def start(self, line: int) -> None:
        """A line's answer is under way."""
        assert not self.is_answered(line)
        assert line not in self._in_flight
        self._in_flight[line] = asyncio.Event()

    def take(self, outcome: Outcome) -> bool:
        """Notes an answer. False for one that is not this run's, or not the first of its line."""
        line = outcome.line
        if outcome.run != self.run or not 1 <= line < len(self._answered) or self._answered[line]:
            return False
        self._answered[line] = True
        self.done += not outcome.failed
        self.failed += outcome.failed
        self.prompt_tokens += outcome.prompt_tokens
        self.completion_tokens += outcome.completion_tokens
        if (event := self._in_flight.pop(line, None)) is not None:
            event.set()
        self._freed.set()
        return True

    async def room(self) -> int:
        """How many more requests may be in flight; waits until there is room for one."""
        while (free := self._window - self.in_flight) <= 0:
            self._freed.clear()
            await self._freed.wait()
        return free

    async def answered(self, line: int) -> None:
        """Waits for the answer of a line that is in flight."""
        if (event := self._in_flight.get(line)) is not None:
            await event.wait()
