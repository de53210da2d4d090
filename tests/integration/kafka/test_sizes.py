"""Messages as large, and with as many headers, as are allowed, and foreign ones that are larger."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from kafka import KafkaProducer

from headrace.broker.connect import connect
from headrace.broker.contract import Done, OpenOutcome, Retry
from headrace.broker.errors import TooLarge
from headrace.broker.message import Message
from tests.contract.steps import BODY, Writer, publish
from tests.integration.kafka.sessions import OPTIONS, Fleet, deliveries

pytestmark = pytest.mark.slow
MOST = 64 << 10


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def fleet(kafka_url: str, prefix: str) -> AsyncIterator[Fleet]:
    options = {**OPTIONS, "max_message_bytes": str(MOST)}
    made = Fleet(await connect(kafka_url, prefix=prefix, options=options))
    yield made
    await made.close()


def raw(
    kafka_url: str, topic: str, value: bytes, headers: list[tuple[str, bytes]], compression: str | None = None
) -> None:
    producer = KafkaProducer(
        bootstrap_servers=kafka_url.removeprefix("kafka://"),
        compression_type=compression,
        max_request_size=1 << 30,
    )
    try:
        producer.send(topic, value, headers=headers, partition=0).get(timeout=10)
    finally:
        producer.close()


async def test_a_large_record_that_is_no_message_stops_no_pull(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    """Foreign clients may write as much as the topic takes, which is more than we send."""
    session = await fleet.consume()
    topic = f"{prefix}.requests.standard"
    await asyncio.to_thread(raw, kafka_url, topic, b"x" * (MOST + 1_000), [("deadline", b"soon")])
    await publish(fleet.broker, Message(BODY, "good"))
    (delivery,) = await deliveries(session, 1)
    assert delivery.ref.request_id == "good"


async def test_one_that_came_compressed_and_could_not_be_sent_on_is_not_begun(
    kafka_url: str, prefix: str, fleet: Fleet
) -> None:
    """It could not be put off: one worker after the other would end of that."""
    session = await fleet.consume()
    topic = f"{prefix}.requests.standard"
    await asyncio.to_thread(raw, kafka_url, topic, b"x" * (4 * MOST), [("request-id", b"large")], "gzip")
    await publish(fleet.broker, Message(BODY, "good"))
    for delivery in await deliveries(session, 1):
        writer = await Writer.open(session, delivery)
        assert await session.settle(delivery, writer.epoch, Retry(1, "busy"))
    (letter,) = await fleet.broker.dead_letters()
    assert "more than" in letter.reason


async def test_one_with_as_many_headers_as_are_allowed_comes_back_from_a_retry(fleet: Fleet) -> None:
    session = await fleet.consume()
    headers = {f"x-{n}": "1" for n in range(255)}
    await publish(fleet.broker, Message(BODY, "r", headers=headers))
    (delivery,) = await deliveries(session, 1)
    writer = await Writer.open(session, delivery)
    assert await session.settle(delivery, writer.epoch, Retry(1, "busy"))
    for _ in range(30):
        if await session.pull(1, 200):
            break
    assert await fleet.broker.dead_letters() == []


async def test_one_as_large_as_is_allowed_can_be_put_off(fleet: Fleet) -> None:
    session = await fleet.consume()
    await publish(fleet.broker, Message(b"x" * (MOST - 150), "r"))
    (delivery,) = await deliveries(session, 1)
    writer = await Writer.open(session, delivery)
    assert await session.settle(delivery, writer.epoch, Retry(1, "busy"))


async def test_one_with_large_headers_can_be_ended(fleet: Fleet) -> None:
    session = await fleet.consume()
    await publish(fleet.broker, Message(BODY, "r", headers={"x": "y" * (MOST - 400)}))
    (delivery,) = await deliveries(session, 1)
    writer = await Writer.open(session, delivery)
    try:
        await writer.finish(line=b"l" * 1_000)
    except TooLarge:
        opened = await session.open(delivery)
        assert opened.outcome is OpenOutcome.ENDED
        assert await session.settle(delivery, 0, Done())
