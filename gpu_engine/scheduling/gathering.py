"""Requests that have come and wait until the batching policy lets them into the line."""

from __future__ import annotations

import math
from collections.abc import Iterator

from headrace.gpu_engine.scheduling.policies import BatchingPolicy, BatchState
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.waiting import WaitingQueue


class Gathering:
    """In front of the line. Where not all are let in at once, lanes, deadlines and ageing say who is."""

    def __init__(self, policy: BatchingPolicy, max_batch_size: int, ageing_s: float = math.inf) -> None:
        self._policy = policy
        self._max_batch_size = max_batch_size
        self._queue: WaitingQueue[Request] = WaitingQueue(ageing_s)
        self._since: dict[Request, float] = {}  # when they came, seconds; the oldest first
        self.num_tokens = 0

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, request: Request) -> bool:
        return request in self._since

    def __iter__(self) -> Iterator[Request]:
        return iter(self._since)

    def push(self, request: Request, now: float) -> None:
        self._queue.push(request)
        self._since[request] = now
        self.num_tokens += request.num_tokens

    def remove(self, request: Request) -> None:
        self._queue.remove(request)
        self._forget(request)

    def let_in(self, num_running: int, num_in_line: int, now: float) -> list[Request]:
        """Those whom the policy lets into the line now, as they came; they are gathered no more."""
        if not self._since:
            return []
        state = BatchState(
            num_running=num_running,
            num_in_line=num_in_line,
            num_gathered=len(self._since),
            gathered_tokens=self.num_tokens,
            oldest_wait_ms=1000 * (now - next(iter(self._since.values()))),
            max_batch_size=self._max_batch_size,
        )
        chosen = self._choose(self._policy.let_in(state), now)
        return sorted(chosen, key=lambda request: request.turn.arrival)

    def _choose(self, count: int, now: float) -> list[Request]:
        self._queue.age(now)
        chosen = self._queue.candidates(max(0, count))
        for request in chosen:
            self.remove(request)
        for request in chosen:  # only then: whoever goes along is not overtaken
            self._queue.overtake(request.turn.arrival, now)
        return chosen

    def _forget(self, request: Request) -> None:
        del self._since[request]
        self.num_tokens -= request.num_tokens

    def check_invariants(self) -> None:
        self._queue.check_invariants()
        assert set(self._queue) == set(self._since), "a gathered request is lost"
        assert self.num_tokens == sum(request.num_tokens for request in self._since), "tokens are miscounted"
