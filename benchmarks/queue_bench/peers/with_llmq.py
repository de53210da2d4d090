"""llmq on RabbitMQ: its dummy worker, whose second of sleep is left out. Acknowledges after the result."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any
from unittest.mock import MagicMock

from driving import drive, main, side_by_side, url

os.environ["RABBITMQ_URL"] = url()
os.environ["LLMQ_LOG_LEVEL"] = "ERROR"
logging.disable(logging.WARNING)
# Its package of workers imports one that needs embeddings; a stand-in for what that one imports will do.
sys.modules["semhash"] = MagicMock()

from llmq.core.broker import BrokerManager  # noqa: E402 (it reads the environment when it is imported)
from llmq.core.models import Job  # noqa: E402
from llmq.workers.dummy_worker import DummyWorker  # noqa: E402

QUEUE = "bench"


class NoOpWorker(DummyWorker):
    async def _process_job(self, job: Job) -> str:
        return str(job.model_dump()["text"])


class LlmqClient:
    def __init__(self, broker: BrokerManager) -> None:
        self._broker = broker
        self._results: asyncio.Queue[int] = asyncio.Queue()
        self._published = 0

    async def start(self) -> None:
        async def received(message: Any) -> None:
            self._results.put_nowait(int(json.loads(message.body)["result"]))
            await message.ack()

        await self._broker.consume_results(QUEUE, received)

    async def publish(self, numbers: Iterable[int]) -> None:
        jobs = [Job(id=str(n), messages=[{"role": "user", "content": "no-op"}], text=str(n)) for n in numbers]
        self._published = len(jobs)
        await side_by_side(lambda job=job: self._broker.publish_job(QUEUE, job) for job in jobs)

    async def collect(self) -> list[int]:
        return [await self._results.get() for _ in range(self._published)]


async def driver() -> None:
    broker = BrokerManager()
    await broker.connect()
    client = LlmqClient(broker)
    await client.start()
    await drive(client)


if __name__ == "__main__":
    main(lambda: asyncio.run(NoOpWorker(QUEUE, concurrency=200).run()), driver)
