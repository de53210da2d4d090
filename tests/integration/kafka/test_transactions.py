"""Offsets that the group refused go nowhere, whatever the same owner commits later."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from headrace.broker.kafka.address import parse_address
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.transactions import Outcome, Transactions

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0


@pytest.fixture
def topic(kafka_url: str) -> str:
    name = f"refused-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=list(parse_address(kafka_url).servers))
    with contextlib.closing(admin):
        admin.create_topics([NewTopic(name=name, num_partitions=2, replication_factor=1)])
    return name


@pytest.fixture
def member(kafka_url: str, topic: str) -> Iterator[KafkaConsumer]:
    """The only member of a group of that name."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=list(parse_address(kafka_url).servers),
        group_id=topic,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    with contextlib.closing(consumer):
        deadline = time.monotonic() + PATIENCE_S
        while len(consumer.assignment()) < 2:
            consumer.poll(100)
            assert time.monotonic() < deadline
        yield consumer


def committed(consumer: KafkaConsumer, partition: TopicPartition) -> int | None:
    found: int | None = consumer.committed(partition)
    return found


def test_a_later_transaction_does_not_carry_them(kafka_url: str, topic: str, member: KafkaConsumer) -> None:
    mine, theirs = TopicPartition(topic, 0), TopicPartition(topic, 1)
    now: Any = member.group_metadata()
    before = ConsumerGroupMetadata(now.group_id, now.generation_id - 1, now.member_id, None)
    transactions = Transactions(Clients(parse_address(kafka_url)).producer_options(), f"{topic}.owner")

    def commit(offsets: Mapping[TopicPartition, int], membership: Any) -> Outcome:
        held = {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()}
        return transactions.commit([], held, membership)

    assert commit({mine: 3, theirs: 8}, now) is Outcome.COMMITTED
    assert commit({theirs: 7}, before) is Outcome.OUTDATED
    assert commit({mine: 4}, now) is Outcome.COMMITTED
    transactions.discard()
    assert (committed(member, mine), committed(member, theirs)) == (4, 8)
