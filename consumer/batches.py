"""Short jobs for one thread, handed over many at a time.

    loop    ── job, job, job ──► batch ──┐               ┌─► results of the batch
    thread                               └─ job job job ─┘

A hand-over to a thread and back costs more than parsing a usual request: two wake-ups, and both sides waiting
for the interpreter's lock. So what piles up while a batch is in the thread goes in together next. A batch
that takes long comes back with what is done: nobody's result waits for a neighbour's long prompt for more
than `SLICE_S`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

SLICE_S = 0.002


class JobBroken(Exception):
    """A job raised what its caller could not handle as an error, such as a panic of native code."""


class _Job(msgspec.Struct, frozen=True):
    work: Callable[[], Any]
    result: asyncio.Future[Any]


class BatchThread:
    """One thread. Made and used in one event loop; jobs are begun in the order in which they came."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._jobs: deque[_Job] = deque()
        self._running: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns, or raises, in the thread."""
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future())
        self._jobs.append(job)
        if self._running is None:
            self._running = loop.create_task(self._hand_over(), name="batches for a thread")
        result: T = await job.result
        return result

    def close(self) -> None:
        """Jobs that were not begun are not begun any more."""
        if self._running is not None:
            self._running.cancel()
        for job in self._jobs:
            job.result.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _hand_over(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._jobs:
                batch = [job for job in self._jobs if not job.result.done()]  # else its caller is gone
                self._jobs.clear()
                outcomes = await loop.run_in_executor(self._thread, _work_off, batch)
                self._jobs.extendleft(reversed(batch[len(outcomes) :]))
                for job, (result, error) in zip(batch, outcomes, strict=False):
                    if job.result.done():
                        continue
                    if error is None:
                        job.result.set_result(result)
                    else:
                        job.result.set_exception(error)
        finally:
            self._running = None


def _work_off(batch: list[_Job]) -> list[tuple[Any, Exception | None]]:
    """In the thread: as many of the jobs as fit the slice, at least one."""
    end, outcomes = time.perf_counter() + SLICE_S, list[tuple[Any, Exception | None]]()
    for job in batch:
        try:
            outcomes.append((job.work(), None))
        except BaseException as error:  # this thread has nobody else to tell, and neighbours wait for it
            outcomes.append((None, _told(error)))
        if time.perf_counter() > end:
            break
    return outcomes


def _told(error: BaseException) -> Exception:
    """What whoever waits for the job gets. StopIteration cannot pass through a future."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    broken = JobBroken(f"{type(error).__name__}: {error}")
    broken.__cause__ = error
    return broken
