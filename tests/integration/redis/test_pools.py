"""Pools over Redis Streams: one index for all of them, and a step to another one that is atomic."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from headrace.broker.contract import (
    Broker,
    CancelResult,
    Conflict,
    Done,
    OpenOutcome,
    PassOn,
    Published,
    Retry,
)
from headrace.broker.events import Handed, Moved, Started
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from tests.integration.redis.steps import (
    BODY,
    LONG_MS,
    SHORT_MS,
    entries,
    lines,
    publish,
    run,
    shown,
    take,
    xadd,
)

LARGE = "large"
LANES = (Lane.BATCH,)


async def test_an_id_is_one_request_in_whatever_pool_it_is_published(broker: Broker) -> None:
    await broker.publish([Message(BODY, "r", Lane.BATCH, pool=LARGE)])
    ref = RequestRef("r")
    again = await broker.publish(
        [Message(BODY, "r", Lane.BATCH), Message(b"another body", "r", Lane.STANDARD)]
    )
    assert again == [Published(ref, duplicate=True), Conflict(ref)]
    session = await broker.consume(LANES, LONG_MS)
    assert await session.pull(5, 0) == []


async def test_a_request_that_was_passed_on_is_still_known_under_its_id(broker: Broker) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, PassOn(LARGE))
    ref = RequestRef("r")
    again = await broker.publish([Message(BODY, "r", Lane.BATCH), Message(b"another body", "r", Lane.BATCH)])
    assert again == [Published(ref, duplicate=True), Conflict(ref)]
    assert await broker.cancel(ref) is CancelResult.MARKED
    large = await broker.consume(LANES, LONG_MS, pool=LARGE)
    delivery = await take(large)
    opened = await large.open(delivery)
    assert (opened.outcome, opened.cancelled) == (OpenOutcome.RUN, True)
    assert opened.epoch > first.epoch
    assert not await first.say(0, "WRONG")


async def test_a_twin_in_one_pool_of_what_waits_or_runs_in_another_is_told_so(
    broker: Broker, client: Redis, names: Names
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    large = await broker.consume(LANES, LONG_MS, pool=LARGE)

    async def twin_outcome() -> OpenOutcome:
        await xadd(client, names.requests(Lane.BATCH), {b"body": BODY, b"request-id": b"r"})
        twin = await take(session)
        outcome = (await session.open(twin)).outcome
        assert await session.settle(twin, 0, Done())
        return outcome

    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, PassOn(LARGE))
    assert await twin_outcome() is OpenOutcome.TWIN
    moved = await run(large)
    assert await twin_outcome() is OpenOutcome.TWIN
    assert await large.settle(moved.delivery, moved.epoch, Retry(200, "busy"))
    assert await twin_outcome() is OpenOutcome.TWIN
    assert await session.pull(1, 300) == [], "a parked delivery is brought back by its own pool"
    again = await run(large)
    assert again.delivery.position == first.delivery.position
    assert await again.finish()
    assert await twin_outcome() is OpenOutcome.ENDED
    assert await lines(broker, 1) == [b"line"]


async def test_passing_on_is_one_step(broker: Broker, client: Redis, names: Names) -> None:
    """What was sent is untouched but for the place where it first stood; nothing is left behind."""
    stream, there = names.requests(Lane.BATCH), names.requests(Lane.BATCH, LARGE)
    entry_id = await xadd(client, stream, {b"body": b"\xff\x00", b"x": b"1"})
    attempt = await run(await broker.consume(LANES, LONG_MS))
    assert await attempt.start()
    assert await attempt.session.settle(attempt.delivery, attempt.epoch, PassOn(LARGE))
    assert await client.xlen(stream) == 0
    assert (await client.xpending(stream, names.group))["pending"] == 0
    (moved,) = await entries(client, there)
    position = f"{stream}/{entry_id}"
    assert moved == {b"body": b"\xff\x00", b"x": b"1", b"headrace-position": position.encode()}
    large = await broker.consume(LANES, LONG_MS, pool=LARGE)
    second = await run(large)
    assert second.state.moved == Moved(attempt.epoch, LARGE, "")
    assert second.delivery.position == attempt.delivery.position == second.delivery.ref.request_id
    assert isinstance(second.state.started, Started)
    assert isinstance(second.state.handed, Handed)
    assert await second.start()
    assert await second.say(0, "a")
    assert await second.finish()
    assert (await shown(broker, second.delivery.ref)).text == "a"


async def test_what_is_passed_on_reaches_a_consumer_that_already_waits(broker: Broker) -> None:
    large = await broker.consume(LANES, LONG_MS, pool=LARGE)
    waiting = asyncio.create_task(large.pull(1, 10_000))
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    attempt = await run(session)
    assert await session.settle(attempt.delivery, attempt.epoch, PassOn(LARGE))
    (delivery,) = await asyncio.wait_for(waiting, 5)
    assert delivery.ref == RequestRef("r")


async def test_a_refused_pass_on_moves_nothing(broker: Broker, client: Redis, names: Names) -> None:
    await publish(broker, "r")
    late = await run(await broker.consume(LANES, SHORT_MS))
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    await take(await broker.consume(LANES, SHORT_MS))
    assert not await late.session.settle(late.delivery, late.epoch, PassOn(LARGE))
    assert await client.exists(names.requests(Lane.BATCH, LARGE), names.pools) == 0


@pytest.mark.parametrize("pool", ["", LARGE])
async def test_a_retried_delivery_lapses_and_comes_back_in_its_pool(broker: Broker, pool: str) -> None:
    await broker.publish([Message(BODY, "r", Lane.BATCH, pool=pool)])
    session = await broker.consume(LANES, SHORT_MS, pool=pool)
    first = await run(session)
    assert await session.settle(first.delivery, first.epoch, Retry(0, "again"))
    await take(session)
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    other = await broker.consume(LANES, SHORT_MS, pool=pool)
    assert (await take(other)).position == first.delivery.position


async def test_a_pool_may_be_called_as_the_parked_messages_are(broker: Broker) -> None:
    for pool, name in (("", "a"), ("messages", "b")):
        await broker.publish([Message(BODY, name, Lane.BATCH, pool=pool)])
        session = await broker.consume(LANES, LONG_MS, pool=pool)
        owner = await run(session)
        assert await session.settle(owner.delivery, owner.epoch, Retry(500, "busy"))  # both are parked
    assert (await take(session)).ref.request_id == "b"
