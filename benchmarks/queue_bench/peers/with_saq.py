"""SAQ on Redis: an active job without a sign of life is swept back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import uvloop
from driving import drive, main, side_by_side, url
from saq import Job, Queue, Worker


async def no_op(ctx: Any, *, number: int) -> int:
    return number


class SaqClient:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._keys: list[str] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        jobs = await side_by_side(
            lambda n=n: self._queue.enqueue(Job("no_op", kwargs={"number": n}, ttl=600)) for n in numbers
        )
        self._keys = [job.key for job in jobs if job is not None]

    async def collect(self) -> list[int]:
        found: list[int] = []
        for start in range(0, len(self._keys), 500):
            waiting = self._keys[start : start + 500]
            while waiting:
                jobs = [job for job in await self._queue.jobs(waiting) if job is not None]
                found += [job.result for job in jobs if job.completed and job.result is not None]
                waiting = [job.key for job in jobs if not job.completed]
                await asyncio.sleep(0.1 if waiting else 0)
        return found


async def driver() -> None:
    queue = Queue.from_url(url())
    await queue.connect()
    await drive(SaqClient(queue))


async def work() -> None:
    queue = Queue.from_url(url(), max_concurrent_ops=100)
    await queue.connect()
    await Worker(queue, functions=[no_op], concurrency=100).start()


if __name__ == "__main__":
    main(lambda: uvloop.run(work()), driver)
