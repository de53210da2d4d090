"""The reading of events partitions ends and begins anew, over clients that do as the test wants."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerRefused
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.history import Bounds, History
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.tails import Tails
from headrace.broker.message import Lane
from headrace.broker.names import Names

PATIENCE_S = 5
PLACE = LogPlace(Lane.BATCH, "", 0)


class FakeClients:
    """`polled`: what polls bring, in turn; then nothing does. It is its own consumer."""

    servers = "kafka://fake"
    settings = SimpleNamespace(reader_margin_ms=0, ring_bytes=1 << 16)

    def __init__(self) -> None:
        self.polled: deque[list[Any] | Exception] = deque()

    async def consumer(self, **_: object) -> FakeClients:
        return self

    async def assign(self, starts: dict[TopicPartition, int]) -> None:
        """Takes all."""

    async def poll(self, timeout_ms: int) -> list[Any]:
        await asyncio.sleep(0.001)
        answer = self.polled.popleft() if self.polled else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Nothing to close."""


class FakeHistory:
    """Nothing stands anywhere."""

    async def bounds(self, partitions: Iterable[TopicPartition], since_ms: int | None = None) -> Bounds:
        return dict.fromkeys(partitions, (0, 0))

    async def all(self, *_: object) -> list[Any]:
        return []


def tails_over(clients: FakeClients) -> Tails:
    clock = cast(BrokerClock, SimpleNamespace(now_ms=lambda: 0))
    return Tails(cast(Clients, clients), cast(History, FakeHistory()), clock, Names())


def record(place: LogPlace, offset: int) -> Any:
    topic = Names().events(place.lane)
    return SimpleNamespace(
        topic=topic, partition=place.partition, offset=offset, timestamp=0, key=b"k", value=b"v"
    )


async def test_who_comes_after_the_reading_failed_is_served() -> None:
    clients = FakeClients()
    tails = tails_over(clients)
    async with asyncio.timeout(PATIENCE_S):
        [tail] = await tails.attach([PLACE])
        listener = tail.listen(b"k")
        clients.polled.append(BrokerRefused("this user may not read"))
        await listener.ready.wait()
        with pytest.raises(BrokerRefused):
            tails.check()
        tail.unlisten(listener)
        tails.detach(tail)
        [again] = await tails.attach([PLACE])
        listener = again.listen(b"k")
        clients.polled.append([record(PLACE, 0)])
        await listener.ready.wait()
    assert again.ring.holds(b"k")
    await tails.close()
