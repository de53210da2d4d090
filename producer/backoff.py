"""Waiting between attempts: exponential, with full jitter, so that clients that failed together do not
come back together ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`first_s`: bound of the first wait, doubled by each failure up to `longest_s`. `patience_s`: how long
    failures may follow one another, without any progress, before the caller is told."""

    first_s: float = 0.1
    longest_s: float = 5.0
    patience_s: float = 60.0


class Backoff:
    """The waits of one task. `reset` after progress; times in seconds, by a monotonic clock."""

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._uniform = uniform
        self._failures = 0
        self._failing_since = 0.0

    @property
    def failures(self) -> int:
        """Failures since the last progress."""
        return self._failures

    def reset(self) -> None:
        self._failures = 0

    def next_wait(self, at_least: float = 0.0, *, for_ever: bool = False) -> float | None:
        """Seconds to wait after one more failure, or None when patience is at its end (never, where
        something else bounds the waiting: `for_ever`).

        `at_least`: what the other side asked for; the jitter comes on top of it, up to half as much again, so
        that all who were told the same do not come back together.
        """
        now = self._clock()
        if self._failures == 0:
            self._failing_since = now
        bound = min(self._policy.longest_s, self._policy.first_s * 2 ** min(self._failures, 32))
        self._failures += 1
        wait = at_least + self._uniform(0, max(bound, at_least / 2))
        over = now + wait - self._failing_since > self._policy.patience_s
        return None if over and not for_ever else wait
