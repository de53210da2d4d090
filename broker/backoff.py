"""How long a reader waits before it tries again."""

from __future__ import annotations

import asyncio
import random


class Backoff:
    """Waits between attempts of a reader that reconnects: exponential, full jitter, up to 2 s."""

    def __init__(self, first_s: float = 0.05, most_s: float = 2.0) -> None:
        self._first, self._most = first_s, most_s
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    async def wait(self) -> None:
        bound = min(self._most, self._first * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        await asyncio.sleep(random.uniform(bound / 4, bound))
