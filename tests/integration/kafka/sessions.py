"""What tests of Kafka sessions share: heartbeats, patience, and an outside reader."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from headrace.broker.contract import Broker, ConsumerSession
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka.address import parse_address
from headrace.broker.message import Delivery, Lane

OPTIONS = {"partitions": "2", "delays": "200ms 10s"}
LEASE_MS = 2_000
PATIENCE_S = 20.0


@dataclass
class Fleet:
    """Sessions that are kept alive, and what they lost. `freeze` ends their heartbeats."""

    broker: Broker
    lost: dict[str, list[Delivery]] = field(default_factory=dict)
    _beats: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _sessions: list[ConsumerSession] = field(default_factory=list)

    async def consume(self, lanes: Sequence[Lane] = (Lane.STANDARD,)) -> ConsumerSession:
        session = await self.broker.consume(lanes, LEASE_MS)
        self.lost[session.name] = []
        self._sessions.append(session)
        self._beats[session.name] = asyncio.create_task(self._beat(session))
        return session

    async def _beat(self, session: ConsumerSession) -> None:
        while True:
            with contextlib.suppress(BrokerUnavailable):
                self.lost[session.name] += await session.heartbeat()
            await asyncio.sleep(LEASE_MS / 5000)

    async def hears_of_loss(self, session: ConsumerSession) -> list[Delivery]:
        """What the session lost: a heartbeat tells, which may come after others have the work already."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.lost[session.name]:
                await asyncio.wait([self._beats[session.name]], timeout=0.01)
        return self.lost[session.name]

    def freeze(self, session: ConsumerSession) -> None:
        self._beats.pop(session.name).cancel()

    async def close(self) -> None:
        for task in self._beats.values():
            task.cancel()
        await asyncio.gather(*self._beats.values(), return_exceptions=True)
        for session in self._sessions:
            await session.close()
        await self.broker.close()


async def deliveries(session: ConsumerSession, count: int) -> list[Delivery]:
    """Pulls until so many came."""
    taken: list[Delivery] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < count:
        taken += await session.pull(count - len(taken), 500)
        assert time.monotonic() < deadline, f"{len(taken)} of {count} deliveries came"
    return taken


async def committed_lines(url: str, topic: str, partitions: int = 1) -> list[bytes]:
    """What any `read_committed` reader sees in a topic."""
    return await asyncio.to_thread(_read, url, topic, partitions)


def _read(url: str, topic: str, partitions: int) -> list[bytes]:
    consumer = KafkaConsumer(
        bootstrap_servers=list(parse_address(url).servers),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with contextlib.closing(consumer):
        places = [TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        lines: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(place) < ends[place] for place in places):
            lines += [record.value for found in consumer.poll(100).values() for record in found]
            assert time.monotonic() < deadline, "an open transaction holds readers up"
        return lines
