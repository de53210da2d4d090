"""The requests that wait to join, in lanes; and who of them is due (see `turn` for the rules)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any, Generic, TypeVar

from headrace.gpu_engine.scheduling.turn import HasTurn

Waiter = TypeVar("Waiter", bound=HasTurn)


def _in_lane(waiter: HasTurn) -> tuple[float, int]:
    return waiter.turn.in_lane


def _arrival(waiter: HasTurn) -> int:
    return waiter.turn.arrival


class _Lane(Generic[Waiter]):
    """The requests of one lane twice: in the order in which they are served, and as they came."""

    def __init__(self) -> None:
        self.in_order: list[Waiter] = []
        self.as_they_came: list[Waiter] = []

    @property
    def oldest(self) -> Waiter:
        return self.as_they_came[0]

    def push(self, waiter: Waiter) -> None:
        _insert(self.in_order, waiter, _in_lane)
        _insert(self.as_they_came, waiter, _arrival)

    def remove(self, waiter: Waiter) -> None:
        _delete(self.in_order, waiter, _in_lane)
        _delete(self.as_they_came, waiter, _arrival)


def _insert(line: list[Waiter], waiter: Waiter, key: Callable[[HasTurn], Any]) -> None:
    """Most come last; a search would cost a call of `key` for each probe."""
    if not line or key(line[-1]) < key(waiter):
        line.append(waiter)
    else:
        insort(line, waiter, key=key)


def _delete(line: list[Waiter], waiter: Waiter, key: Callable[[HasTurn], Any]) -> None:
    """Most leave from the head."""
    place = 0 if line[0] is waiter else bisect_left(line, key(waiter), key=key)
    assert line[place] is waiter, "it does not wait in its lane"
    del line[place]


class WaitingQueue(Generic[Waiter]):
    """Lanes of waiting requests, each sorted by deadline and arrival: one that was preempted comes back to
    its place. `ageing_s`: how long the oldest of a lane is overtaken before it is due, in seconds."""

    def __init__(self, ageing_s: float = math.inf) -> None:
        self._ageing_s = ageing_s
        self._lanes: dict[int, _Lane[Waiter]] = {}

    def __len__(self) -> int:
        return sum(len(lane.in_order) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[Waiter]:
        return chain.from_iterable(lane.in_order for lane in self._lanes.values())

    def push(self, waiter: Waiter) -> None:
        lane = self._lanes.setdefault(waiter.turn.priority, _Lane())
        if lane.in_order and waiter.turn.arrival < lane.oldest.turn.arrival:
            waiter.turn.take_claim(lane.oldest.turn)
        lane.push(waiter)

    def remove(self, waiter: Waiter) -> None:
        lane = self._lanes[waiter.turn.priority]
        lane.remove(waiter)
        if not lane.in_order:
            del self._lanes[waiter.turn.priority]

    def candidates(self, limit: int) -> list[Waiter]:
        """The next `limit` requests in the order in which they may join: those that are due, then lane by
        lane. Only the oldest of a lane can be due."""
        due = sorted((one for one in self._oldest() if one.turn.is_due), key=_arrival)
        in_lanes = (
            waiter
            for priority in sorted(self._lanes)
            for waiter in islice(self._lanes[priority].in_order, limit)
            if waiter not in due
        )
        return list(islice(chain(due, in_lanes), limit))

    def due(self) -> Waiter | None:
        """The one that has the first claim on what is free, if there is one."""
        found = None
        for lane in self._lanes.values():
            oldest = lane.oldest
            if oldest.turn.is_due and (found is None or _arrival(oldest) < _arrival(found)):
                found = oldest
        return found

    def overtake(self, arrival: int, now: float) -> None:
        """Marks the oldest of each lane that came before `arrival`, whose owner has just joined."""
        for oldest in self._oldest():
            if oldest.turn.arrival < arrival:
                oldest.turn.overtake(now)

    def age(self, now: float) -> None:
        """Marks those as due that have been overtaken for too long."""
        for oldest in self._oldest():
            since = oldest.turn.overtaken_since
            oldest.turn.aged = since is not None and now - since >= self._ageing_s

    def _oldest(self) -> Iterator[Waiter]:
        return (lane.oldest for lane in self._lanes.values())

    def check_invariants(self) -> None:
        for priority, lane in self._lanes.items():
            assert lane.in_order, "an empty lane is kept"
            assert all(one.turn.priority == priority for one in lane.in_order), "it waits in another's lane"
            assert lane.in_order == sorted(lane.as_they_came, key=_in_lane), "a lane is out of order"
            arrivals = [_arrival(one) for one in lane.as_they_came]
            assert arrivals == sorted(set(arrivals)), "a lane does not know who came first"
