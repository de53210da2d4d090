"""Topics that are deleted while they are in use, on a real node: as clients do with their reply topics."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from kafka.admin import KafkaAdminClient

from headrace.broker.message import Message
from tests.contract.kafka_case import KafkaCase, kafka_case
from tests.contract.steps import BODY, publish, publish_one, read_results, start_writer

pytestmark = pytest.mark.slow

PATIENCE_S = 45.0


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()


def delete(case: KafkaCase, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=case._servers())
    try:
        admin.delete_topics([topic])
    finally:
        admin.close()


async def test_a_reply_topic_that_was_deleted_holds_up_no_settlement(kafka: KafkaCase) -> None:
    reply = f"{kafka.names.prefix}.reply.mine"
    await publish(kafka.broker, Message(BODY, "first", reply_to=reply), Message(BODY, "mine", reply_to=reply))
    await publish_one(kafka.broker, "neighbour")
    session = await kafka.consume()
    writers = [await start_writer(kafka, session) for _ in range(3)]
    by_id = {writer.delivery.ref.request_id: writer for writer in writers}
    assert await by_id["first"].finish(b"first")
    await asyncio.to_thread(delete, kafka, reply)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(
            *(by_id[name].finish(name.encode()) for name in ("mine", "neighbour")), return_exceptions=True
        )
        await session._settler.flushed(PATIENCE_S)  # type: ignore[attr-defined]
    assert [line.line for line in await read_results(kafka)] == [b"neighbour"]
    assert [line.line for line in await read_results(kafka, reply)] == [b"mine"]


async def test_a_reply_topic_that_was_deleted_holds_up_no_events_for_long(kafka: KafkaCase) -> None:
    reply = f"{kafka.names.prefix}.reply.mine"
    await publish(kafka.broker, Message(BODY, "mine", reply_to=reply, stream=True))
    session = await kafka.consume()
    writer = await start_writer(kafka, session)
    await writer.say("a", chunks=[b"1"])
    await asyncio.to_thread(delete, kafka, reply)
    for _ in range(3):
        try:
            await writer.append(chunks=[b"2"])
            break
        except Exception:
            opened = await session.open(writer.delivery)
            assert opened.state is not None
            writer.epoch, writer.fold = opened.epoch, opened.state
            await writer.start()
    assert await writer.finish(b"line")
    assert b"line" in [line.line for line in await read_results(kafka, reply)]
