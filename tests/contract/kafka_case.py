"""The Kafka adapter over one node, with leases as short as its brokers take, in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.kafka.address import parse_address
from headrace.broker.kafka.connection import Connection
from headrace.broker.message import Lane
from headrace.broker.names import Names
from tests.contract.case import Case

LEASE_MS = 1_500
OPTIONS = {"partitions": "2", "delays": "20ms 750ms 1500ms 15s"}


class KafkaCase(Case):
    finds_duplicates_at_publish = False
    refuses_late_appends = False
    leases_single_deliveries = False
    emits_chunks_once = False
    control_delay_ms = 300

    def __init__(self, broker: Broker, url: str, prefix: str) -> None:
        super().__init__(broker, Names(prefix), LEASE_MS)
        self._url = url
        self._heart = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        """Time passes by itself here, so heartbeats do: a slow machine is no reason to lose a lease."""
        while True:
            await asyncio.sleep(LEASE_MS / 4000)
            for session in list(self._alive):
                self.lost += await session.heartbeat()

    async def close(self) -> None:
        self._heart.cancel()
        await asyncio.gather(self._heart, return_exceptions=True)
        await super().close()
        await asyncio.to_thread(self._delete_topics)

    def _delete_topics(self) -> None:
        """So that the node does not grow slower from test to test."""
        admin = KafkaAdminClient(bootstrap_servers=self._servers())
        try:
            admin.delete_topics([t for t in admin.list_topics() if t.startswith(f"{self.names.prefix}.")])
        finally:
            admin.close()

    def _servers(self) -> list[str]:
        return list(parse_address(self._url).servers)

    async def another_connection(self) -> Broker:
        return await connect(self._url, prefix=self.names.prefix, options=OPTIONS)

    async def publish_raw(self, lane: Lane, fields: Mapping[str, bytes]) -> None:
        """All entries without id go to one partition: their order is part of what tests say."""
        await self._make_topics(lane)
        await asyncio.to_thread(self._send, lane, dict(fields))

    async def _make_topics(self, lane: Lane) -> None:
        """Foreign clients find topics that somebody of ours made before."""
        settings = parse_address(self._url, OPTIONS)
        connection = Connection.make(settings, self.names)
        await connection.topics.lane(lane)
        await connection.close()

    def _send(self, lane: Lane, fields: dict[str, bytes]) -> None:
        producer = KafkaProducer(bootstrap_servers=self._servers())
        try:
            body, key = fields.pop("body", None), fields.get("request-id", b"raw")
            producer.send(self.names.requests(lane), body, key=key, headers=list(fields.items())).get(10)
        finally:
            producer.close(timeout=5)

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def kafka_case(url: str, prefix: str) -> KafkaCase:
    return KafkaCase(await connect(url, prefix=prefix, options=OPTIONS), url, prefix)
