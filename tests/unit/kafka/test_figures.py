from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kafka.structs import TopicPartition

from headrace.broker.kafka.figures import Figures
from headrace.broker.names import Names


class Reader:
    """A consumer of a group for which nothing was committed."""

    def __init__(self) -> None:
        self.closed = False

    async def call(self, call: Any) -> Any:
        return call(SimpleNamespace(committed=lambda partition, metadata, timeout_ms: None))

    async def close(self) -> None:
        self.closed = True


class Clients:
    def __init__(self) -> None:
        self.made: list[Reader] = []

    async def consumer(self, **options: Any) -> Reader:
        self.made.append(Reader())
        await asyncio.sleep(0)
        return self.made[-1]


async def test_many_who_ask_at_once_leave_no_consumer_behind() -> None:
    clients = Clients()
    at: Any = SimpleNamespace(clients=clients, names=Names("x"))
    letters: Any = None
    figures = Figures(at, letters)
    await asyncio.gather(*(figures._committed("", [TopicPartition("x", n)]) for n in range(3)))
    await figures.close()
    assert [reader.closed for reader in clients.made] == [True]
