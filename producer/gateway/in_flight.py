"""What is in flight through this gateway, and where that ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.producer.gateway import status
from headrace.producer.gateway.drain_rate import DrainRate
from headrace.producer.gateway.limits import GatewayLimits
from headrace.producer.gateway.status import Refusal


class InFlight:
    """Counts streamed requests and their estimated tokens. What entered must leave."""

    def __init__(self, limits: GatewayLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._rate = DrainRate(clock)
        self.requests = 0
        self.tokens = 0

    def enter(self, tokens: int) -> Refusal | None:
        """Takes one request in, or says why not now."""
        if self.requests >= self._limits.max_requests:
            return self._full("requests", self.requests, self._limits.max_requests)
        if self.requests and self.tokens + tokens > self._limits.max_tokens:
            return self._full("tokens", self.tokens, self._limits.max_tokens)
        self.requests += 1
        self.tokens += tokens
        return None

    def leave(self, tokens: int) -> None:
        self.requests -= 1
        self.tokens -= tokens
        self._rate.observe(1)

    def _full(self, what: str, count: int, limit: int) -> Refusal:
        message = f"the gateway has {count} {what} in flight and takes up to {limit}; try a little later"
        return status.exhausted(
            message, "GATEWAY_FULL", self._rate.delay_ms(1), {"counted": what, "limit": str(limit)}
        )
