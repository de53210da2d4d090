"""What kafka-python answers too early, or too late: a commit that never was, and offsets of long ago."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata

from headrace.broker.connect import connect
from headrace.broker.contract import Done
from headrace.broker.kafka import group_reader
from headrace.broker.message import Lane, Message
from tests.contract.kafka_case import KafkaCase, kafka_case
from tests.contract.steps import BODY, publish, publish_one, start_writer
from tests.integration.kafka.sessions import LEASE_MS, OPTIONS, PATIENCE_S, Fleet, deliveries

pytestmark = pytest.mark.slow

_TOO_LONG = "x" * 10_000  # metadata that no broker takes


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()


async def test_a_first_commit_counts_only_once_the_group_has_it(kafka: KafkaCase) -> None:
    """Its coordinator is unknown for a moment, as when it moves: to be found again is no acknowledgement."""
    session: Any = await kafka.consume()
    owner, restorer = session._owner, session._holdings._restorer
    (partition, tenure), *_ = session._holdings.tenures.items()
    turn = owner._turns[partition]
    refused = {partition: OffsetAndMetadata(0, _TOO_LONG, -1)}
    assert await restorer._commit_once(refused, tenure.member, turn) is None
    owner.do(tenure.member, lambda consumer: consumer._coordinator.coordinator_dead("it moves"))
    assert await restorer._commit_once(refused, tenure.member, turn) is None
    assert await restorer.commit({partition: tenure.commit()}, tenure.member, turn) == {partition}


async def test_offsets_are_those_of_today(kafka: KafkaCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition is taken over while the broker is slow, taken away before the answer comes, and comes back
    when another owner has finished much of it."""
    session: Any = await kafka.consume()
    reader, partitions = session._reader, list(session._holdings.tenures)
    before = await reader.committed(partitions)
    too_late = asyncio.Event()

    async def end_open_transactions(_: object) -> None:
        too_late.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as slow:
        slow.setattr(group_reader, "_STABLE_MS", 0)
        slow.setattr(reader, "_end_open_transactions", end_open_transactions)
        taking_over = asyncio.create_task(reader.committed(partitions))
        await asyncio.wait_for(too_late.wait(), 10)
        taking_over.cancel()
        await asyncio.gather(taking_over, return_exceptions=True)
    await asyncio.sleep(0.2)
    await publish_one(kafka.broker)
    writer = await start_writer(kafka, session)
    assert await writer.finish()
    after = await reader.committed(partitions)
    assert sum(held.base for held in after.values()) == sum(held.base for held in before.values()) + 1


async def test_a_static_member_that_let_go_too_late_leaves_no_partition_without_an_owner(
    kafka_url: str,
) -> None:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    fleets = [
        Fleet(await connect(kafka_url, prefix=prefix, options={**OPTIONS, "group_instance_id": name}))
        for name in ("pod-1", "pod-2")
    ]
    try:
        first: Any = await fleets[0].consume()
        slow = asyncio.Event()

        async def flushed(timeout_s: float) -> None:
            slow.set()
            await asyncio.sleep(LEASE_MS / 1000)

        first._settler.flushed, quick = flushed, first._settler.flushed
        second = await fleets[1].consume()
        await asyncio.wait_for(slow.wait(), 10)
        first._settler.flushed = quick
        await publish(fleets[0].broker, *(Message(BODY, f"r{n}", lane=Lane.STANDARD) for n in range(20)))
        ids = set[str]()
        async with asyncio.timeout(PATIENCE_S):
            while len(ids) < 20:
                for session in (first, second):
                    ids |= {delivery.ref.request_id for delivery in await session.pull(20, 200)}
    finally:
        for fleet in fleets:
            await fleet.close()


async def test_a_static_member_that_comes_back_during_a_slow_transaction_is_no_twin_of_itself(
    kafka_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group refuses the transaction in the words that tell of another process under its name."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    fleet = Fleet(await connect(kafka_url, prefix=prefix, options={**OPTIONS, "group_instance_id": "pod-1"}))
    try:
        session: Any = await fleet.consume()
        await publish(fleet.broker, Message(BODY, "r", lane=Lane.STANDARD))
        (delivery,) = await deliveries(session, 1)
        transactions, former = session._settler._parts.transactions, session._owner.membership
        ready, go_on = transactions.ready, threading.Event()
        monkeypatch.setattr(transactions, "ready", lambda: go_on.wait(PATIENCE_S) and ready())
        settling = asyncio.create_task(session.settle(delivery, 0, Done()))
        await asyncio.sleep(0)
        fleet.freeze(session)
        await asyncio.sleep(1.2 * LEASE_MS / 1000)
        async with asyncio.timeout(PATIENCE_S):
            while not session._owner.joined or session._owner.membership == former:
                await session.heartbeat()
                await asyncio.sleep(0.02)
            go_on.set()
            assert not await settling
            while not (again := await session.pull(1, 100)):
                await session.heartbeat()
        assert await session.settle(again[0], 0, Done())
    finally:
        await fleet.close()
