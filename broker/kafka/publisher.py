"""One idempotent producer for what goes outside transactions.

A producer that gave a record up is replaced. kafka-python 3.0 forgets the producer's id where that record had
been sent before (the broker was frozen, or killed with it in flight), never asks for another, and then sends
nothing and gives nothing up any more. Whoever else waits for that producer is told that it is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import kafka.errors as ke
from kafka import KafkaProducer

from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.clients import DELIVERY_MS, Acknowledged, Clients
from headrace.broker.kafka.clock import BrokerClock, local_ms
from headrace.broker.kafka.codec import Record

_UNKNOWN_NOW = ("Partitioner did not assign a partition", "Unrecognized partition")
_PATIENCE_S = DELIVERY_MS / 1000 + 5.0  # the producer has given up by then, unless it is beyond repair


class Publisher:
    """Made at its first use. What `send` was given is acknowledged by all replicas in sync when it returns;
    when it raises, some of it may stand in the topics all the same."""

    def __init__(self, clients: Clients, clock: BrokerClock, patience_s: float = _PATIENCE_S) -> None:
        self._clients, self._clock, self._patience_s = clients, clock, patience_s
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
            # It may wait, hence the thread.
            futures = await self._clients.run(_send, producer, records)
            async with asyncio.timeout(self._patience_s):
                answers = await self._clients.acknowledged(futures)
        except (BrokerRefused, BrokerUnavailable, TimeoutError) as error:
            if await self._discard(producer) and not isinstance(error, TimeoutError):
                raise
            # Silence, or somebody else's failure took the producer away.
            raise BrokerUnavailable(
                f"{self._clients.servers} did not acknowledge a write in time; is it running, and in reach?"
            ) from error
        self._clock.observe(sent_ms, answers[-1].timestamp, local_ms())
        return answers

    async def close(self) -> None:
        self._closed = True
        if self._making is not None:
            await asyncio.wait([self._making])
            if (producer := self._made()) is not None:
                await self._clients.close_producer(producer)

    async def _producer(self) -> KafkaProducer:
        if self._closed:
            raise BrokerRefused(f"the connection to {self._clients.servers} was closed by this process")
        if self._making is None or (self._making.done() and self._making.exception() is not None):
            self._making = asyncio.ensure_future(self._clients.producer())
        return await asyncio.shield(self._making)

    async def _discard(self, producer: KafkaProducer) -> bool:
        """The next call makes a new one. False: this one has been discarded before."""
        if self._made() is not producer:
            return False
        self._making = None
        await self._clients.close_producer(producer, patience_s=0)
        return True

    def _made(self) -> KafkaProducer | None:
        if self._making is None or not self._making.done() or self._making.exception() is not None:
            return None
        return self._making.result()


def send_record(producer: KafkaProducer, record: Record) -> Any:
    """Its future; raises for what can never be sent. May wait for the metadata of a topic.

    kafka-python looks for the partitions once more after that, and calls it a ValueError where its metadata
    has lost them by then: another node has not heard of the topic yet, or not any more. That passes.
    """
    try:
        return producer.send(
            record.topic,
            value=record.value,
            key=record.key,
            headers=record.headers,
            partition=record.partition,
        )
    except ValueError as error:
        if str(error).startswith(_UNKNOWN_NOW):
            raise ke.UnknownTopicOrPartitionError(str(error)) from error
        raise


def _send(producer: KafkaProducer, records: Sequence[Record]) -> list[Any]:
    return [send_record(producer, record) for record in records]
