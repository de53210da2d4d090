"""How fast somebody's worker gets through no-op requests: the same procedure for everybody.

    warm up ─► hold the worker (SIGSTOP) ─► publish N ─► let it go, read N results back     backlog
            ─► publish N and read N results back, the worker running                        concurrent

The backlog is what counts as speed: the clock runs from the worker's release to the last result read back,
so a slow publisher, or a slow start, is held against nobody. Each reads with its own client, and knows that
each result is the right one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Protocol

from benchmarks.queue_bench.figures import backlog_size

_WARM_UP = 200
_PILOT = 400


class Contestant(Protocol):
    """A worker that runs, and a client that feeds it. Seconds are those that a call took."""

    def publish(self, count: int) -> float: ...

    def collect(self) -> float:
        """Reads back the results of all that was published since the last call."""

    def cpu(self) -> float:
        """CPU seconds of the worker's processes so far."""

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Stops the worker where it is, for the length of the block."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Rates per second; `cpu_per_1000`: CPU seconds of the worker's processes per 1,000 requests."""

    requests: int
    backlog: float
    concurrent: float
    publishing: float
    cpu_per_1000: float


def measure(contestant: Contestant, seconds: float, *, most: int = 30_000) -> Speed:
    """`seconds`: about how long the worker shall be kept busy in each part."""
    contestant.publish(_WARM_UP)
    contestant.collect()
    pilot = _PILOT / (contestant.publish(_PILOT) + contestant.collect())
    count = backlog_size(pilot, seconds, least=_PILOT, most=most)
    with contestant.held():
        publishing = count / contestant.publish(count)
        before = contestant.cpu()
    backlog = count / contestant.collect()
    cpu = contestant.cpu() - before
    concurrent = count / (contestant.publish(count) + contestant.collect())
    return Speed(count, backlog, concurrent, publishing, cpu / count * 1000)
