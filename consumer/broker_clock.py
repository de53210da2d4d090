"""The broker's clock, as far as a consumer can tell: it judges deadlines while nothing was opened yet."""

from __future__ import annotations

import time
from collections.abc import Callable


class BrokerClock:
    """Unix milliseconds. Follows what the broker says; until it has spoken, this machine's clock is believed.
    Good for order and timers; what ends a request is decided by the broker's own answer."""

    def __init__(self, clock: Callable[[], float], unix: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._offset_ms = (unix() - clock()) * 1000

    def now_ms(self) -> float:
        return self._clock() * 1000 + self._offset_ms

    def heard(self, now_ms: int) -> None:
        """The broker said that it is `now_ms`."""
        self._offset_ms = now_ms - self._clock() * 1000
