"""The Redis Streams adapter over an embedded Valkey, with short leases in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from redis.asyncio import Redis
from redis.typing import EncodableT

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.message import Lane
from headrace.broker.names import Names
from tests.contract.case import Case

LEASE_MS = 400


class RedisCase(Case):
    finds_duplicates_at_publish = True
    refuses_late_appends = True
    leases_single_deliveries = True
    emits_chunks_once = True

    def __init__(self, broker: Broker, url: str, prefix: str) -> None:
        super().__init__(broker, Names(prefix), LEASE_MS)
        self._url = url

    async def another_connection(self) -> Broker:
        return await connect(self._url, prefix=self.names.prefix)

    async def publish_raw(self, lane: Lane, fields: Mapping[str, bytes]) -> None:
        client = Redis.from_url(self._url)
        try:
            entry: dict[EncodableT, EncodableT] = dict(fields.items())
            await client.xadd(self.names.requests(lane), entry)
        finally:
            await client.aclose()

    async def sleep(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)


async def redis_case(url: str, prefix: str) -> RedisCase:
    return RedisCase(await connect(url, prefix=prefix), url, prefix)
