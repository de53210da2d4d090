"""celery on Redis, `acks_late`: an unacknowledged task comes back after the visibility timeout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery import Celery
from driving import drive, main, url

app = Celery("bench", broker=url(), backend=url())
app.conf.update(
    task_acks_late=True,
    worker_prefetch_multiplier=200,
    worker_pool="solo",
    broker_connection_retry_on_startup=True,
    result_expires=600,
    task_serializer="json",
    result_serializer="json",
)


@app.task(name="no_op")
def no_op(number: int) -> int:
    return number


class CeleryClient:
    def __init__(self) -> None:
        self._ids: list[str] = []

    async def publish(self, numbers: Iterable[int]) -> None:
        with app.producer_pool.acquire(block=True) as producer:
            self._ids = [no_op.apply_async((n,), producer=producer).id for n in numbers]

    async def collect(self) -> list[int]:
        found: list[int] = []
        for start in range(0, len(self._ids), 500):
            ids = self._ids[start : start + 500]
            metas: Iterable[tuple[str, dict[str, Any]]] = app.backend.get_many(ids, interval=0.1)
            found += [meta["result"] for _, meta in metas]
        return found


def worker() -> None:
    app.worker_main(["worker", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])


if __name__ == "__main__":
    main(worker, lambda: drive(CeleryClient()))
