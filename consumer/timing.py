"""The times of one delivery: its deadline, and how long it may wait for its start.

While it waits unopened, times are judged by what is known of the broker's clock, and the only thing that they
do is to have it opened out of its turn; from then on the broker's own time decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.message import Delivery
from headrace.broker.queue_policy import QueuePolicy


class Timing:
    """`policy`: that of its lane. All times are the broker's unix milliseconds."""

    def __init__(self, delivery: Delivery, policy: QueuePolicy) -> None:
        self.deadline_ms = delivery.message.deadline_ms
        self.published_ms = delivery.published_ms
        self.limit_ms = policy.timeout_of(delivery.message)
        self._delays = policy.on_timeout == "delay"
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def late_at_ms(self) -> int | None:
        """From when on those in time go before it."""
        return self._limit_at() if self._delays else None

    def expired(self, now_ms: float) -> bool:
        return self.deadline_ms is not None and self.deadline_ms <= now_ms

    def overdue(self, now_ms: float) -> bool:
        """Whether it waited longer for its start than it may."""
        at = self._refused_at()
        return at is not None and at < now_ms

    def arm(self, now_ms: float, at_deadline: Callable[[], None], when_overdue: Callable[[], None]) -> None:
        """Calls back when the times come, in place of earlier calls."""
        self.stop()
        for at_ms, call in ((self.deadline_ms, at_deadline), (self._refused_at(), when_overdue)):
            if at_ms is not None:
                delay_s = max(0.0, at_ms - now_ms) / 1000
                self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))

    def begun(self) -> None:
        """Somebody began the request, now or before: it may wait no longer, or again."""
        self.limit_ms = None

    def stop(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    def _limit_at(self) -> int | None:
        return None if self.limit_ms is None else self.published_ms + self.limit_ms

    def _refused_at(self) -> int | None:
        return None if self._delays else self._limit_at()
