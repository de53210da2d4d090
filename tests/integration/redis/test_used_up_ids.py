"""A client chooses the ids of its entries, and may use up those of a lane: nothing fits behind the last."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import Broker, DeadLetter, OpenOutcome, Retry
from headrace.broker.errors import BrokerError
from headrace.broker.message import Lane
from headrace.broker.names import Names
from tests.integration.redis.steps import LANES, LONG_MS, SHORT_MS, publish, run, take

LAST_ID = "18446744073709551615-18446744073709551615"


async def use_up(client: Redis, stream: str) -> None:
    await client.execute_command("XADD", stream, LAST_ID, "body", b'{"custom_id": "last"}')  # type: ignore[no-untyped-call]


async def test_what_is_parked_for_it_keeps_nobody_from_the_other_lanes(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, Retry(0, "busy"))
    await use_up(client, names.requests(Lane.BATCH))
    await publish(broker, "other", lane=Lane.INTERACTIVE)
    other = await take(session)
    assert other.ref.request_id == "other"
    assert await session.heartbeat() == []
    await client.delete(names.requests(Lane.BATCH))  # what an operator does about it
    await client.zadd(names.retries(), {first.delivery.position: 0})  # its time comes
    parked = await take(session)
    assert parked.ref == first.delivery.ref
    assert (await session.open(parked)).outcome is OpenOutcome.RUN


async def test_a_dead_letter_that_cannot_be_replayed_there_is_kept(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await take(session)
    assert await session.settle(first, 0, DeadLetter("for a test"))
    await use_up(client, names.requests(Lane.BATCH))
    [letter] = await broker.dead_letters()
    with pytest.raises(BrokerError):
        await broker.replay(letter.position)
    assert await broker.dead_letters() == [letter]


async def test_its_depth_can_be_asked_for(broker: Broker, client: Redis, names: Names) -> None:
    await use_up(client, names.requests(Lane.BATCH))
    session = await broker.consume(LANES, LONG_MS)
    await take(session)
    assert (await broker.stats()).lanes[Lane.BATCH].leased == 1


@pytest.mark.parametrize("limit", [100, 200])
async def test_a_sweep_whose_page_ends_with_it_is_complete(
    broker: Broker, client: Redis, names: Names, limit: int
) -> None:
    page = 100  # pending entries that a sweep looks at in one step
    dead = await broker.consume(LANES, SHORT_MS)
    await publish(broker, *(f"r{number}" for number in range(page - 1)))
    await use_up(client, names.requests(Lane.BATCH))
    assert len(await dead.pull(page, 0)) == page
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    session = await broker.consume(LANES, SHORT_MS)
    assert len(await session.pull(limit, 0)) == page
    await publish(broker, "other", lane=Lane.INTERACTIVE)
    assert [one.ref.request_id for one in await session.pull(2, 0)] == ["other"]
