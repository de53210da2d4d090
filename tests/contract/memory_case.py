"""The in-memory log with Kafka's rules, under a clock that the test moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from headrace.broker.contract import Broker
from headrace.broker.message import Lane, RequestRef
from tests.contract.case import Case
from tests.support.memory_clock import ManualClock
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_log import MemoryLog
from tests.support.memory_topics import PartitionId, Record, partition_number


class MemoryCase(Case):
    finds_duplicates_at_publish = False
    refuses_late_appends = False
    leases_single_deliveries = False
    emits_chunks_once = False

    def __init__(self, cluster: MemoryCluster, clock: ManualClock) -> None:
        super().__init__(MemoryLog(cluster), cluster.names, lease_ms=30_000)
        self.cluster = cluster
        self.clock = clock

    async def another_connection(self) -> Broker:
        return MemoryLog(self.cluster)

    async def publish_raw(self, lane: Lane, fields: Mapping[str, bytes]) -> None:
        headers = {name: value for name, value in fields.items() if name != "body"}
        ref = RequestRef(fields.get("request-id", b"").decode())
        number = partition_number(ref, self.cluster.width) if ref.request_id else 0
        partition = self.cluster.partitions[PartitionId(lane, number)]
        record = Record(fields.get("body"), self.clock.now_ms(), headers=headers)
        self.cluster.append(partition.requests, record)

    async def sleep(self, ms: int) -> None:
        self.clock.advance(ms)
        await self.cluster.hop()


def memory_case(prefix: str, hops: random.Random | None = None) -> MemoryCase:
    """With `hops`, a round trip takes a random number of turns of the event loop: others run meanwhile. Now
    and then it takes so many that a consumer without heartbeats loses its lease in the middle of it."""

    async def hop() -> None:
        turns = 1 if hops is None else hops.randrange(6) if hops.random() < 0.98 else 200
        for _ in range(turns):
            await asyncio.sleep(0)

    clock = ManualClock()
    return MemoryCase(MemoryCluster(clock, prefix=prefix, hop=hop), clock)
