"""Waiting out a broker that is away: exponential backoff with full jitter."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.broker.errors import BrokerUnavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

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


async def insist(call: Callable[[], Awaitable[T]], what: str, longest_s: float = LONGEST_S) -> T:
    """Repeats `call` while the broker is away, for ever. Only for calls that may be repeated.

    An outage is a warning once, however long it lasts: each request in flight is insisting meanwhile."""
    backoff, level = Backoff(longest_s=longest_s), logging.WARNING
    while True:
        try:
            return await call()
        except BrokerUnavailable as error:
            log.log(level, "%s failed, will be repeated: %s", what, error)
            level = logging.DEBUG
            await backoff.pause()
