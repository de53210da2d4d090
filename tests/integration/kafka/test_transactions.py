"""A transaction is called committed when all of it was, and nothing of one that was not comes later.

kafka-python keeps offsets that the group refused; a record whose time is over it leaves out, and commits the
rest; and a producer that a successor fenced takes its name back with a new epoch.
"""

from __future__ import annotations

import asyncio
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
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.leftovers import Leftovers
from headrace.broker.kafka.transactions import Outcome, Transactions

pytestmark = pytest.mark.slow

PATIENCE_S = 30.0
LINGER_MS = 300  # records wait for so long, unless their transaction ends before


@pytest.fixture
def topic(kafka_url: str) -> str:
    name = f"transactions-{uuid.uuid4().hex[:8]}"
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


def settle(transactions: Transactions, topic: str, line: bytes) -> Outcome:
    """A line and an offset, as a member of no group would."""
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(7, "", -1)}
    return transactions.commit([Record(topic, line, partition=0)], offsets, ConsumerGroupMetadata(topic))


def lines(kafka_url: str, topic: str) -> list[bytes]:
    """All that was committed to the topic, up to the line `last`."""
    consumer = KafkaConsumer(
        bootstrap_servers=list(parse_address(kafka_url).servers),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        found, deadline = list[bytes](), time.monotonic() + PATIENCE_S
        while b"last" not in found:
            assert time.monotonic() < deadline
            found += [record.value for records in consumer.poll(100).values() for record in records]
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


@pytest.mark.parametrize("behind", ["send_offsets_to_transaction", "begin_commit"])
def test_one_that_a_successor_ended_is_not_called_committed(
    kafka_url: str, topic: str, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the offsets, its records are still to be sent; behind its own end, they are on their way."""
    clients = Clients(parse_address(kafka_url))
    transactions = Transactions(clients.producer_options(linger_ms=LINGER_MS), f"{topic}.owner")
    manager = transactions.ready()._transaction_manager
    step = getattr(manager, behind)

    def step_and_fence(*args: Any) -> Any:
        answer = step(*args)
        if behind == "send_offsets_to_transaction":
            assert answer.wait(timeout_ms=PATIENCE_S * 1000)
        asyncio.run(Leftovers(clients).end(f"{topic}.owner"))
        return answer

    monkeypatch.setattr(manager, behind, step_and_fence)
    outcome = settle(transactions, topic, b"first")
    monkeypatch.undo()
    outcomes = [settle(transactions, topic, b"last")]
    while outcomes[-1] is Outcome.ANEW:  # by the producer that was fenced, behind what it did commit
        assert len(outcomes) < 3
        outcomes.append(settle(transactions, topic, b"last"))
    assert outcomes[-1] is Outcome.COMMITTED
    transactions.discard()
    assert lines(kafka_url, topic) == ([b"first"] if outcome is Outcome.COMMITTED else []) + [b"last"]


def test_a_record_whose_time_is_over_is_not_left_out(kafka_url: str, topic: str) -> None:
    transactions = Transactions(Clients(parse_address(kafka_url)).producer_options(), f"{topic}.owner")
    transactions.ready()._accumulator.config["delivery_timeout_ms"] = 1
    assert settle(transactions, topic, b"lost") is not Outcome.COMMITTED
    transactions.discard()
