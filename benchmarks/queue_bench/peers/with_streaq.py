"""streaq: Redis streams, leases that are renewed, acknowledged late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from driving import drive, main, url
from streaq import Worker

worker = Worker(redis_url=url(), concurrency=100, anyio_kwargs={"use_uvloop": True})


@worker.task(ttl=600)
async def no_op(number: int) -> int:
    return number


class StreaqClient:
    def __init__(self) -> None:
        self._tasks: list[Any] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        self._tasks = [no_op.enqueue(n) for n in numbers]
        for start in range(0, len(self._tasks), 500):
            await worker.enqueue_many(self._tasks[start : start + 500])

    async def collect(self) -> list[int]:
        """In bulk: its own `result` takes two connections for each task that is awaited."""
        found: list[int] = []
        for start in range(0, len(self._tasks), 500):
            waiting = [worker.results_key + task.id for task in self._tasks[start : start + 500]]
            while waiting:
                raw = dict(zip(waiting, await worker.redis.mget(waiting), strict=True))
                found += [(await worker.deserialize(data))["r"] for data in raw.values() if data is not None]
                waiting = [key for key, data in raw.items() if data is None]
                await asyncio.sleep(0.1 if waiting else 0)
        return found


async def driver() -> None:
    async with worker:
        await drive(StreaqClient())


if __name__ == "__main__":
    main(worker.run_sync, driver)
