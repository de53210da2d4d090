"""arq: jobs stay in the queue until they are done, an expiring key marks those in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

import uvloop
from arq import create_pool, run_worker
from arq.connections import ArqRedis, RedisSettings
from arq.jobs import Job
from driving import drive, main, side_by_side, url


async def no_op(ctx: dict[str, Any], number: int) -> int:
    return number


class WorkerSettings:
    functions: ClassVar[list[Any]] = [no_op]
    redis_settings = RedisSettings.from_dsn(url())
    max_jobs = 200
    poll_delay = 0.01
    keep_result = 600


class ArqClient:
    def __init__(self, pool: ArqRedis) -> None:
        self._pool = pool
        self._jobs: list[Job] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        jobs = await side_by_side(lambda n=n: self._pool.enqueue_job("no_op", n) for n in numbers)
        self._jobs = [job for job in jobs if job is not None]

    async def collect(self) -> list[int]:
        return await side_by_side(lambda job=job: job.result(poll_delay=0.1) for job in self._jobs)


def worker() -> None:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    run_worker(WorkerSettings)


async def driver() -> None:
    await drive(ArqClient(await create_pool(RedisSettings.from_dsn(url()))))


if __name__ == "__main__":
    main(worker, driver)
