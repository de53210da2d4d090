"""The broker's clock, as far as acknowledgements tell: our topics bear its time, not ours."""

from __future__ import annotations

import time


class BrokerClock:
    """Unix milliseconds. Each acknowledged record says that the broker's clock stood at `stamped_ms` at some
    moment between sending and hearing of it; as long as our own clock may be right by that, we believe it."""

    def __init__(self) -> None:
        self._least, self._most = -float("inf"), float("inf")

    def observe(self, sent_ms: int, stamped_ms: int, heard_ms: int) -> None:
        """The newest observation always holds; older ones only narrow it, since clocks drift and are set."""
        least, most = stamped_ms - heard_ms, stamped_ms - sent_ms + 1
        fits = least <= self._most and most >= self._least
        self._least = max(least, self._least) if fits else least
        self._most = min(most, self._most) if fits else most

    @property
    def skew_ms(self) -> int:
        """What must be added to our own clock."""
        return int(min(max(0, self._least), self._most))

    def now_ms(self) -> int:
        return local_ms() + self.skew_ms


def local_ms() -> int:
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """For how long ago something was, whatever our clock is set to meanwhile."""
    return _BEGAN_MS + time.monotonic_ns() // 1_000_000


_BEGAN_MS = local_ms() - time.monotonic_ns() // 1_000_000
