"""When to look for lapsed deliveries, and where the look goes on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

START, DUE = "0-0", "due"


@dataclass(slots=True)
class _Round:
    cursor: str = START
    due: float = 0.0


class SweepPlan:
    """One round over each lane's pending entries every quarter lease, jittered so that consumers do not
    march in step. A round goes on where it stopped (starting anew would never reach the later entries).
    The first one is due at once: a restarted service finds what its former self left. Times in seconds.
    """

    def __init__(self, lanes: int, lease_ms: int) -> None:
        self._rounds = [_Round() for _ in range(lanes)]
        self._pause = lease_ms / 1000 / 4

    def cursors(self, now: float) -> list[str]:
        """Per lane where to go on, '' where no sweep is due."""
        return [r.cursor if r.due <= now or r.cursor != START else "" for r in self._rounds]

    def advance(self, cursors: Sequence[str], now: float) -> None:
        """Takes what a sweep answered: '' not swept, DUE not begun though it is due, START when a round is
        complete, or where it goes on."""
        for r, cursor in zip(self._rounds, cursors, strict=True):
            if cursor == DUE:
                r.cursor, r.due = START, now
            elif cursor:
                r.cursor = cursor
                if cursor == START:
                    r.due = now + self._pause * random.uniform(0.75, 1.25)

    def next_due(self, now: float, lanes: Iterable[int]) -> float:
        """Seconds until a sweep of one of these lanes (numbers from 0) is due, 0 if one is."""
        rounds = [self._rounds[lane] for lane in lanes]
        unfinished = any(r.cursor != START for r in rounds)
        return 0.0 if unfinished else max(0.0, min((r.due for r in rounds), default=math.inf) - now)
