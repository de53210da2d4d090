"""How long to wait before the next attempt: exponential backoff with full jitter."""

from __future__ import annotations

import asyncio
import random

FIRST_S = 0.05
LONGEST_S = 5.0


class Backoff:
    """Pauses of 0 … `first_s` · 2^n seconds, at most `longest_s` (AWS architecture blog, "full jitter")."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._attempts = 0

    def next_s(self) -> float:
        """Length of the next pause."""
        bound = min(self._longest_s, self._first_s * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return random.uniform(0, bound)

    async def pause(self) -> None:
        await asyncio.sleep(self.next_s())
