"""The reader beside the group's consumer, on a real node."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka.structs import TopicPartition

from headrace.broker.kafka.group_reader import Bounds, GroupReader
from headrace.broker.kafka.results import trim
from headrace.broker.message import Lane, Message
from tests.contract.kafka_case import KafkaCase, kafka_case
from tests.contract.steps import BODY, publish, publish_one

pytestmark = pytest.mark.slow


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()


async def test_a_partition_that_it_did_not_know_yet_is_looked_up(kafka: KafkaCase) -> None:
    """As a rebalance brings them: of a lane of which this session had no partition before."""
    await publish(kafka.broker, Message(BODY, lane=Lane.STANDARD), Message(BODY, lane=Lane.BATCH))
    at = kafka.broker._at  # type: ignore[attr-defined]
    first = TopicPartition(kafka.names.requests(Lane.STANDARD), 0)
    second = TopicPartition(kafka.names.requests(Lane.BATCH), 0)
    reader = GroupReader(at.clients, "anyone")
    await reader.start()
    try:
        assert set(await reader.bounds([first])) == {first}
        assert set(await reader.bounds([first, second])) == {first, second}
    finally:
        await reader.close()


async def test_a_partition_that_has_no_leader_for_a_moment_is_looked_up(
    kafka: KafkaCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish_one(kafka.broker)
    at = kafka.broker._at  # type: ignore[attr-defined]
    both = [TopicPartition(kafka.names.requests(Lane.STANDARD), number) for number in (0, 1)]
    reader = GroupReader(at.clients, "anyone")
    await reader.start()
    try:
        before = await reader.bounds(both)
        thread: Any = reader._thread
        cluster = thread._consumer._cluster
        known, left = cluster.leader_for_partition, [2]

        def away(partition: TopicPartition) -> Any:
            if partition == both[1] and left[0]:
                left[0] -= 1
                return -1
            return known(partition)

        monkeypatch.setattr(cluster, "leader_for_partition", away)
        assert await reader.bounds(both) == before
        assert all(isinstance(bounds, Bounds) for bounds in before.values())
    finally:
        await reader.close()


async def test_what_the_broker_drops_while_a_stretch_is_wanted_ends_no_session(kafka: KafkaCase) -> None:
    """A restore begins far back, and retention goes on beside it."""
    await publish(kafka.broker, *(Message(BODY, "r", lane=Lane.STANDARD) for _ in range(4)))
    at = kafka.broker._at  # type: ignore[attr-defined]
    reader = GroupReader(at.clients, "anyone")
    await reader.start()
    try:
        bounds = await reader.bounds([TopicPartition(kafka.names.requests(Lane.STANDARD), n) for n in (0, 1)])
        (stretch,) = ({p: each} for p, each in bounds.items() if each.end)
        ((partition, each),) = stretch.items()
        for first in (2, 4):
            await trim(at.clients, {partition: first})
            assert [r.offset for r in (await reader.read(stretch))[partition]] == list(range(first, each.end))
    finally:
        await reader.close()
