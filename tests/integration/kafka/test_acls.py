"""Topics that the cluster's ACLs close to us, on a real node: that is a matter of those who named them."""

from __future__ import annotations

import asyncio
import contextlib

import kafka.errors as ke
import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from headrace.broker.kafka.address import parse_address
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.transactions import Outcome, Transactions
from headrace.broker.message import Lane, Message
from tests.contract.kafka_case import KafkaCase
from tests.contract.steps import BODY, publish, publish_one, read_results, start_writer
from tests.support.kafka_server import missing

pytestmark = pytest.mark.slow

PATIENCE_S = 45.0


async def close_to_writers(case: KafkaCase, topic: str) -> None:
    """Whoever comes may do anything there but write."""

    def deny() -> None:
        admin = KafkaAdminClient(bootstrap_servers=case._servers())
        pattern = ResourcePattern(ResourceType.TOPIC, topic)
        try:
            for operation, permission in (
                (ACLOperation.ALL, ACLPermissionType.ALLOW),
                (ACLOperation.WRITE, ACLPermissionType.DENY),
            ):
                answer = admin.create_acls([ACL("User:ANONYMOUS", "*", operation, permission, pattern)])
                if answer["failed"]:
                    missing(f"THIS KAFKA TAKES NO ACLS, SO THEY ARE NOT TESTED: {answer['failed']}")
        finally:
            admin.close()

    await asyncio.to_thread(deny)


async def test_a_line_whose_reply_topic_is_closed_to_us_goes_to_the_results_of_all(kafka: KafkaCase) -> None:
    reply = f"{kafka.names.prefix}.reply.mine"
    await publish(kafka.broker, Message(BODY, "mine", reply_to=reply, stream=True))
    await publish_one(kafka.broker, "neighbour")
    await close_to_writers(kafka, reply)
    session = await kafka.consume()
    writers = [await start_writer(kafka, session) for _ in range(2)]
    for writer in writers:
        assert await writer.say("a", chunks=[b"a"])
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*(w.finish(w.delivery.ref.request_id.encode()) for w in writers))
    assert {line.line for line in await read_results(kafka)} == {b"mine", b"neighbour"}


async def test_so_does_one_that_is_closed_while_its_request_runs(kafka: KafkaCase) -> None:
    reply = f"{kafka.names.prefix}.reply.mine"
    await publish(kafka.broker, Message(BODY, "first", reply_to=reply), Message(BODY, "mine", reply_to=reply))
    await publish_one(kafka.broker, "neighbour")
    session = await kafka.consume()
    writers = [await start_writer(kafka, session) for _ in range(3)]
    by_id = {writer.delivery.ref.request_id: writer for writer in writers}
    assert await by_id["first"].finish(b"first")
    assert [line.line for line in await read_results(kafka, reply)] == [b"first"]
    await close_to_writers(kafka, reply)
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*(by_id[name].finish(name.encode()) for name in ("mine", "neighbour")))
    assert {line.line for line in await read_results(kafka)} == {b"mine", b"neighbour"}


async def test_a_reply_topic_that_is_closed_in_midstream_stops_nobody(kafka: KafkaCase) -> None:
    reply = f"{kafka.names.prefix}.reply.mine"
    await publish(kafka.broker, Message(BODY, "mine", reply_to=reply, stream=True))
    session = await kafka.consume()
    writer = await start_writer(kafka, session)
    assert await writer.say("a", chunks=[b"1"])
    await close_to_writers(kafka, reply)
    async with asyncio.timeout(PATIENCE_S):
        assert await writer.say_at_last("b", chunks=[b"2"])
        assert await writer.finish(b"line")


async def test_what_a_closed_topic_kept_from_being_completed_is_not_completed_by_others(
    kafka: KafkaCase, kafka_url: str
) -> None:
    """kafka-python keeps its offset in about half of the cases, and sends it with the next transaction."""
    reply, requests = f"{kafka.names.prefix}.reply.mine", kafka.names.requests(Lane.STANDARD)
    await publish(kafka.broker, Message(BODY, "mine", reply_to=reply))
    await close_to_writers(kafka, reply)
    options = Clients(parse_address(kafka_url)).producer_options()
    transactions = Transactions(options, f"{kafka.names.prefix}.owner")

    def commit(number: int, offset: int, *records: Record) -> Outcome:
        offsets = {TopicPartition(requests, number): OffsetAndMetadata(offset, "", -1)}
        return transactions.commit(records, offsets, ConsumerGroupMetadata(kafka.names.prefix))

    def settle_in_turns() -> None:
        for offset in range(20):
            assert commit(0, offset) is Outcome.COMMITTED
            with pytest.raises(ke.TopicAuthorizationFailedError):
                commit(1, offset, Record(reply, b"line"))
        assert commit(0, 20) is Outcome.COMMITTED
        transactions.discard()

    await asyncio.to_thread(settle_in_turns)
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=kafka._servers())) as admin:
        held = admin.list_group_offsets({kafka.names.prefix: None})[kafka.names.prefix]
    assert {partition.partition: one.offset for partition, one in held.items()} == {0: 20}
