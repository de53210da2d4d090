"""One idempotent producer for what goes outside transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from kafka import KafkaProducer

from headrace.broker.errors import BrokerRefused
from headrace.broker.kafka.clients import Acknowledged, Clients
from headrace.broker.kafka.clock import BrokerClock, local_ms
from headrace.broker.kafka.codec import Record


class Publisher:
    """Made at its first use. What `send` was given is acknowledged by all replicas in sync when it returns;
    when it raises, some of it may stand in the topics all the same."""

    def __init__(self, clients: Clients, clock: BrokerClock) -> None:
        self._clients, self._clock = clients, clock
        self._making: asyncio.Future[KafkaProducer] | None = None
        self._closed = False

    async def send(self, records: Sequence[Record]) -> list[Acknowledged]:
        """All of them in one go; answers in their order. Raises BrokerUnavailable, or BrokerError for what
        can never be taken."""
        if not records:
            return []
        producer = await self._producer()
        sent_ms = local_ms()
        try:
            # `send` may wait for the metadata of a topic, hence the thread.
            futures = await self._clients.run(_send, producer, records)
            answers = await self._clients.acknowledged(futures)
        except BrokerRefused:
            await self._discard(producer)  # its state may be beyond repair
            raise
        self._clock.observe(sent_ms, answers[-1].timestamp, local_ms())
        return answers

    async def close(self) -> None:
        self._closed = True
        if self._making is not None:
            await asyncio.wait([self._making])
            if self._making.exception() is None:
                await self._clients.close_producer(self._making.result())

    async def _producer(self) -> KafkaProducer:
        if self._closed:
            raise BrokerRefused(f"the connection to {self._clients.servers} was closed by this process")
        if self._making is None or (self._making.done() and self._making.exception() is not None):
            self._making = asyncio.ensure_future(self._clients.producer())
        return await asyncio.shield(self._making)

    async def _discard(self, producer: KafkaProducer) -> None:
        if self._making is not None and self._making.done() and self._making.result() is producer:
            self._making = None
            await self._clients.close_producer(producer, timeout_s=0)


def _send(producer: KafkaProducer, records: Sequence[Record]) -> list[Any]:
    return [
        producer.send(
            record.topic,
            value=record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
        )
        for record in records
    ]
