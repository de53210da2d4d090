"""rq, its worker that runs jobs in its own process (forking for each, the default, is far slower)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from driving import drive, main, url
from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import Job


def no_op(number: int) -> int:
    return number


class RqClient:
    def __init__(self) -> None:
        self._redis = Redis.from_url(url())
        self._queue = Queue(connection=self._redis)
        self._ids: list[str] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        jobs = [Queue.prepare_data("with_rq.no_op", (n,), result_ttl=600) for n in numbers]
        with self._redis.pipeline() as pipe:
            self._ids = [job.id for job in self._queue.enqueue_many(jobs, pipeline=pipe)]
            pipe.execute()

    async def collect(self) -> list[int]:
        found: list[int] = []
        for start in range(0, len(self._ids), 200):
            waiting = self._ids[start : start + 200]
            while waiting:
                jobs = [job for job in Job.fetch_many(waiting, self._redis) if job is not None]
                done = [job for job in jobs if job.is_finished]
                found += [job.return_value() for job in done]
                waiting = [job.id for job in jobs if job not in done]
                await asyncio.sleep(0.1 if waiting else 0)
        return found


def worker() -> None:
    redis = Redis.from_url(url())
    SimpleWorker([Queue(connection=redis)], connection=redis).work(logging_level="ERROR")


if __name__ == "__main__":
    main(worker, lambda: drive(RqClient()))
