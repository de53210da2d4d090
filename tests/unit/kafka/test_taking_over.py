"""Partitions that are assigned together, where one of them cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka import restore
from headrace.broker.kafka.group_reader import Bounds
from headrace.broker.kafka.holdings import Holdings, HoldingsParts
from headrace.broker.kafka.restore import Restorer
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS
from tests.unit.kafka.rig_steps import until

REQUESTS = [TopicPartition(TOPICS.requests, number) for number in range(4)]
DELAYS = [TopicPartition(TOPICS.delayed[0], number) for number in range(4)]


class Cluster:
    """As reader, publisher and owner see it. `away`: partitions of which it tells nothing, and takes
    nothing. `uncommitted`: of which it takes no offset."""

    def __init__(self) -> None:
        self.away = set[TopicPartition]()
        self.uncommitted = set[TopicPartition]()
        self.leftovers = SimpleNamespace(look_after=lambda names: None)
        self.consumer: Any = SimpleNamespace(_coordinator=self, assignment=set)

    def _look_for(self, partitions: Collection[TopicPartition]) -> None:
        if self.away.intersection(partitions):
            raise BrokerUnavailable("nobody leads it")

    async def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        return {}

    async def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        await asyncio.sleep(0)
        self._look_for(partitions)
        return dict.fromkeys(partitions, Bounds(0, 0))

    async def read(self, stretches: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, list[Any]]:
        self._look_for(stretches)
        return {partition: [] for partition in stretches}

    async def send(self, records: Sequence[Any]) -> list[Any]:
        await asyncio.sleep(0)
        self._look_for([TopicPartition(record.topic, record.partition) for record in records])
        return [SimpleNamespace(offset=0) for _ in records]

    def ours(self, partitions: Collection[TopicPartition], turn: int) -> frozenset[TopicPartition]:
        return frozenset(partitions)

    def do(self, member: str, call: Callable[[Any], None]) -> None:
        call(self.consumer)

    def _do_commit_offsets_async(self, offsets: Any) -> Any:
        refused = self.uncommitted.intersection(offsets)
        return SimpleNamespace(
            add_callback=lambda told: None if refused else told(None),
            add_errback=lambda told: told(None) if refused else None,
        )


def holdings_of(cluster: Cluster) -> Holdings:
    async def nothing(*_: object) -> None: ...

    holdings = Holdings(HoldingsParts([TOPICS], Names("x"), nothing, nothing))
    at = cast(Any, cluster)
    holdings.attach(at, Restorer(at, at, at, Names("x"), "tx", 1_000))
    return holdings


@pytest.mark.parametrize("of", ["away", "uncommitted"])
@pytest.mark.parametrize("bad", [DELAYS[2], REQUESTS[2], TopicPartition(TOPICS.events, 2)])
async def test_one_that_cannot_be_had_keeps_no_other_one_from_being_taken(
    monkeypatch: pytest.MonkeyPatch, bad: TopicPartition, of: str
) -> None:
    """As one whose topic was deleted, or that nobody leads."""
    monkeypatch.setattr(restore, "_TOGETHER_S", 0.02, raising=False)
    cluster = Cluster()
    getattr(cluster, of).add(bad)
    holdings = holdings_of(cluster)
    holdings.assigned(frozenset(REQUESTS + DELAYS), "member", 1)
    try:
        await until(lambda: len(holdings.tenures) + len(holdings.delays) >= 7)
        assert holdings.failure is None
        getattr(cluster, of).clear()
        await until(lambda: len(holdings.tenures) + len(holdings.delays) == 8)
        await until(lambda: not holdings._restoring)
    finally:
        await holdings.close()


async def test_nor_where_it_is_taken_away_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore, "_TOGETHER_S", 0.02, raising=False)
    cluster = Cluster()
    cluster.away.add(DELAYS[0])
    holdings = holdings_of(cluster)
    holdings.assigned(frozenset(REQUESTS + DELAYS), "member", 1)
    try:
        await asyncio.sleep(0.01)
        holdings.revoked(frozenset([DELAYS[0]]), lambda: None)
        await until(lambda: len(holdings.tenures) + len(holdings.delays) == 7)
        await until(lambda: not holdings._restoring)
    finally:
        await holdings.close()
