"""A broker that is away, as the whole consumer sees it.

    failure ──► a warning ──► all further failures: counted, told to nobody ──► back: how long, how many

Each request in flight, the pull and the heartbeat meet it, each at its own time; it is told once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from headrace.broker.errors import BrokerUnavailable
from headrace.consumer.backoff import LONGEST_S, Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

# Above the longest pause between two attempts: a failure so soon after the last one is the same outage.
QUIET_S = 10.0


class Outage:
    """The one that goes on, if any. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = self._failed_at = -math.inf
        self._failures = 0
        self._waiting = 0  # calls that are repeated until they come through

    async def insist(self, call: Callable[[], Awaitable[T]], what: str, longest_s: float = LONGEST_S) -> T:
        """Repeats `call` while the broker is away, for ever. Only for calls that may be repeated."""
        try:
            return await call()
        except BrokerUnavailable as error:
            self.noticed(what, error)
        with self._waits():
            return await self._repeat(call, what, Backoff(longest_s=longest_s))

    def noticed(self, what: str, error: BrokerUnavailable) -> None:
        """A call failed; whoever made it sees to what follows from that."""
        now = self._clock()
        if not self._waiting and now - self._failed_at > QUIET_S:
            self._began_at, self._failures = now, 0
            log.warning("the broker is away, work goes on once it is back; %s failed: %s", what, error)
        else:
            log.debug("%s failed: %s", what, error)
        self._failed_at = now
        self._failures += 1

    async def _repeat(self, call: Callable[[], Awaitable[T]], what: str, backoff: Backoff) -> T:
        while True:
            await backoff.pause()
            try:
                return await call()
            except BrokerUnavailable as error:
                self.noticed(what, error)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """The last one that came through tells that the broker is back."""
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
        if not self._waiting:
            away_s = self._clock() - self._began_at
            log.info("the broker is back after %.1f s; calls that failed: %d", away_s, self._failures)
