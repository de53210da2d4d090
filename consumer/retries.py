"""When a request that waiting may cure comes back: exponential backoff with full jitter, up to its deadline.

    pause n  =  random (0 … min(longest, first · 2^n))

Retries are counted where the log can tell: the reason of `handed` carries the number of the attempt, so the
count goes on at the next consumer, and begins anew once the request has begun."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from headrace.broker.events import Handed
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.failures import Failure, transient
from headrace.consumer.inflight import InFlight
from headrace.consumer.settings import RetrySettings

MOST_DOUBLINGS = 30

_NUMBERED = re.compile(r"retry (\d{1,6}): ")


class Retries:
    """`jitter`: draws a number between two."""

    def __init__(
        self,
        settings: RetrySettings,
        broker_clock: BrokerClock,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._settings = settings
        self._broker_clock = broker_clock
        self._jitter = jitter

    def put_off(self, flight: InFlight, reason: str) -> None:
        """Ends an opened request here; it comes back later."""
        flight.fail(self._next(flight, reason))

    def put_off_instead(self, flight: InFlight, reason: str) -> None:
        """One that was to leave in another way, and cannot."""
        flight.overrule(self._next(flight, reason).ending())

    def _next(self, flight: InFlight, reason: str) -> Failure:
        attempt = attempts(flight.past.put_off)
        bound = min(self._longest_ms, self._settings.first_s * 1000 * 2 ** min(attempt, MOST_DOUBLINGS))
        delay_ms = self._until_deadline(flight, self._jitter(0, bound))
        return transient(f"retry {attempt + 1}: {reason}", delay_ms)

    def put_off_unread(self, flight: InFlight, reason: str) -> None:
        """One whose log cannot be read, so that nobody can count: its pauses are long."""
        delay_ms = self._until_deadline(flight, self._jitter(self._longest_ms / 2, self._longest_ms))
        flight.overrule(transient(reason, delay_ms).ending())

    @property
    def _longest_ms(self) -> float:
        return self._settings.longest_s * 1000

    def _until_deadline(self, flight: InFlight, delay_ms: float) -> int:
        """It is back when its deadline passes, to end then."""
        deadline_ms = flight.delivery.message.deadline_ms
        if deadline_ms is not None:
            delay_ms = min(delay_ms, max(0.0, deadline_ms - self._broker_clock.now_ms()))
        return round(delay_ms)


def attempts(put_off: Handed | None) -> int:
    """How often in a row a request was put off before it began, by what the log says of the last time."""
    numbered = _NUMBERED.match(put_off.reason) if put_off is not None else None
    return int(numbered[1]) if numbered else 0
