"""taskiq with taskiq-redis' stream broker: acknowledges late, reclaims after a fixed idle time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from driving import drive, main, side_by_side, url
from taskiq.cli.worker.args import WorkerArgs
from taskiq.cli.worker.run import run_worker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

ADDRESS = os.environ.get("BENCH_URL") or url()  # the worker imports this file anew, without arguments
broker = RedisStreamBroker(ADDRESS).with_result_backend(RedisAsyncResultBackend(ADDRESS, result_ex_time=600))


@broker.task(task_name="no_op")
async def no_op(number: int) -> int:
    return number


class TaskiqClient:
    def __init__(self) -> None:
        self._tasks: list[Any] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        self._tasks = await side_by_side(lambda n=n: no_op.kiq(n) for n in numbers)

    async def collect(self) -> list[int]:
        results = await side_by_side(
            lambda task=task: task.wait_result(check_interval=0.1) for task in self._tasks
        )
        return [result.return_value for result in results]


async def driver() -> None:
    await broker.startup()
    await drive(TaskiqClient())


def worker() -> None:
    os.environ["BENCH_URL"] = url()
    run_worker(
        WorkerArgs(
            broker="with_taskiq:broker",
            modules=[],
            workers=1,
            max_async_tasks=200,
            max_prefetch=200,
            log_level="ERROR",
        )
    )


if __name__ == "__main__":
    main(worker, driver)
