"""Topics that are deleted while they are in use, on a real node: as clients do with their reply topics."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient

from headrace.broker.connect import connect
from headrace.broker.kafka import orphans
from headrace.broker.message import Message
from tests.contract.kafka_case import KafkaCase
from tests.contract.steps import BODY, publish, publish_one, read_results, start_writer
from tests.integration.kafka.sessions import OPTIONS, Fleet

pytestmark = pytest.mark.slow

PATIENCE_S = 45.0


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
    async with asyncio.timeout(PATIENCE_S):
        assert await writer.say_at_last("b", chunks=[b"2"])
    assert await writer.finish(b"line")
    assert b"line" in [line.line for line in await read_results(kafka, reply)]


async def test_topics_of_former_delays_that_were_deleted_make_nobody_join_again_and_again(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Static members look for partitions that nobody holds, and nobody holds those."""
    monkeypatch.setattr(orphans, "_LOOK_S", 0.1)
    prefix, again = f"test-{uuid.uuid4().hex[:12]}", list[float]()
    former = Fleet(await connect(kafka_url, prefix=prefix, options=OPTIONS))
    await former.consume()
    await former.close()
    options = {**OPTIONS, "delays": "300ms", "group_instance_id": "pod-1"}
    fleet = Fleet(await connect(kafka_url, prefix=prefix, options=options))
    try:
        session: Any = await fleet.consume()
        monkeypatch.setattr(session._orphans, "_join_again", lambda: again.append(time.monotonic()))
        gone = [topic for topic in session._holdings._delayed if ".300ms." not in topic]
        assert len(gone) == 2
        await fleet.broker._at.clients.admin(lambda a: a.delete_topics(gone))  # type: ignore[attr-defined]
        async with asyncio.timeout(PATIENCE_S):
            while len(session._holdings.delays) > 2:
                await session._holdings.changed(0.1)
        again.clear()
        await asyncio.sleep(1.0)
        assert not again
        monkeypatch.setattr(orphans, "held_in", lambda group, wanted: frozenset())
        await asyncio.sleep(0.5)
        assert again, "those that stand and are held by nobody"
    finally:
        await fleet.close()
