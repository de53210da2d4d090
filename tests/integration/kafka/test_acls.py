"""Topics that the cluster's ACLs close to us, on a real node: that is a matter of those who named them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)

from headrace.broker.message import Message
from tests.contract.kafka_case import KafkaCase, kafka_case
from tests.contract.steps import BODY, publish, publish_one, read_results, start_writer
from tests.support.kafka_server import missing

pytestmark = pytest.mark.slow

PATIENCE_S = 45.0


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()


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
        while True:
            try:
                await writer.say("b", chunks=[b"2"])
                break
            except Exception:
                opened = await session.open(writer.delivery)
                assert opened.state is not None
                writer.epoch, writer.fold = opened.epoch, opened.state
                await writer.start()
        assert await writer.finish(b"line")
