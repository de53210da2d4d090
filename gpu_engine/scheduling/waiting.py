"""The requests that wait to join, in lanes; and the bound on how long one is passed over.

Within a lane first come is first served, and lower numbers of `priority` are served first. Two things let
a request overtake: it belongs to a higher lane, or the one before it does not fit into memory now. Each
time, the head of every lane that came earlier is marked as overtaken; at MAX_OVERTAKES it is due, and
nothing that came later joins before it. So the head of a lane is overtaken at most MAX_OVERTAKES times by
requests that came after it, and one with k ahead of it in its lane at most (k + 1) · MAX_OVERTAKES times.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain, islice

from headrace.gpu_engine.scheduling.request import Request


def _arrival(request: Request) -> int:
    return request.arrival


class WaitingQueue:
    """Lanes of waiting requests, each sorted by arrival: one that was preempted comes back to its place."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[Request]] = {}

    def __len__(self) -> int:
        return sum(len(lane) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._lanes.values())

    def push(self, request: Request) -> None:
        insort(self._lanes.setdefault(request.priority, []), request, key=_arrival)

    def remove(self, request: Request) -> None:
        lane = self._lanes[request.priority]
        place = bisect_left(lane, request.arrival, key=_arrival)
        assert lane[place] is request, f"{request.id} does not wait in its lane"
        del lane[place]
        if not lane:
            del self._lanes[request.priority]

    def candidates(self, limit: int) -> list[Request]:
        """The next `limit` requests in the order in which they may join: heads that are due, then lane by
        lane. Only a head can be due."""
        heads = sorted((lane[0] for lane in self._lanes.values()), key=lambda head: head.turn)
        due = [head for head in heads if head.is_due]
        in_lanes = (
            request
            for priority in sorted(self._lanes)
            for request in islice(self._lanes[priority], limit)
            if request not in due
        )
        return list(islice(chain(due, in_lanes), limit))

    def due(self) -> Request | None:
        """The head that must join before any other, if there is one."""
        due = (lane[0] for lane in self._lanes.values() if lane[0].is_due)
        return min(due, key=_arrival, default=None)

    def overtake(self, arrival: int) -> None:
        """Marks the heads that came before `arrival`, whose owner has just joined."""
        for lane in self._lanes.values():
            if lane[0].arrival < arrival:
                lane[0].overtaken += 1

    def check_invariants(self) -> None:
        for priority, lane in self._lanes.items():
            assert lane, "an empty lane is kept"
            assert all(request.priority == priority for request in lane), "a request waits in another's lane"
            arrivals = [request.arrival for request in lane]
            assert arrivals == sorted(set(arrivals)), "a lane is out of order"
