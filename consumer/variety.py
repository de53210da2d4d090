"""Whether it helps to choose among what waits: where all is alike, first in, first out is the best order.

    tenants of one lane          a a a a a a      alike           a a b a a a     they have shares
    deadlines in one lane        1 2 2 3 4 5      in order        1 2 9 3 4 5     the later one can wait
    those whose time is over     none             in time         some            the others go before them

Lanes make no difference here: each has a queue of its own, so whoever pulls later chooses better.

Judged by the latest arrivals, as many as a full window holds. What a consumer has never seen cannot matter to
it: of a mixture that begins deep in the queue it learns when the first of it arrives. No I/O, no clock.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TypeVar

import msgspec

from headrace.broker.message import Lane
from headrace.consumer.fair_queue import Ticket

K = TypeVar("K")

SAME_TIME_MS = 1000  # deadlines closer than this are in order, whoever's clock they come from


class _Arrival(msgspec.Struct, frozen=True):
    lane: Lane
    tenant: str
    odd: bool  # it should overtake, or be overtaken


class Variety:
    """`memory`: how many arrivals are remembered."""

    def __init__(self, memory: int) -> None:
        self._latest: deque[_Arrival] = deque()
        self._memory = memory
        self._odd = 0
        self._lanes: Counter[Lane] = Counter()
        self._tenants: Counter[tuple[Lane, str]] = Counter()
        self._last_deadline: dict[Lane, float] = {}

    @property
    def matters(self) -> bool:
        """Whether the order that the waiting room makes differs from that of the queue."""
        return self._odd > 0 or len(self._tenants) > len(self._lanes)

    def arrived(self, ticket: Ticket, lane: Lane, now_ms: float) -> None:
        """`now_ms`: the broker's unix time."""
        deadline = math.inf if ticket.deadline_ms is None else ticket.deadline_ms
        hurries = deadline < self._last_deadline.get(lane, deadline) - SAME_TIME_MS
        is_late = ticket.late_at_ms is not None and ticket.late_at_ms <= now_ms
        self._last_deadline[lane] = deadline
        self._remember(_Arrival(lane, ticket.tenant, hurries or is_late))
        if len(self._latest) > self._memory:
            self._forget(self._latest.popleft())

    def _remember(self, arrival: _Arrival) -> None:
        self._latest.append(arrival)
        self._odd += arrival.odd
        self._lanes[arrival.lane] += 1
        self._tenants[arrival.lane, arrival.tenant] += 1

    def _forget(self, arrival: _Arrival) -> None:
        self._odd -= arrival.odd
        _decrease(self._lanes, arrival.lane)
        _decrease(self._tenants, (arrival.lane, arrival.tenant))


def _decrease(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
