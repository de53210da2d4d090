"""Shares of lanes, reserves and pauses over Redis Streams, where the contract alone does not show them."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from headrace.broker.contract import Broker, Release
from headrace.broker.lanes import PATIENCE
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from tests.integration.redis.steps import BODY, LANES, LONG_MS, SHORT_MS, publish, run, take

LAPSE_S = SHORT_MS / 1000 * 1.3


async def calls(client: Redis) -> int:
    """Scripts that the server has run so far."""
    stats = await client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


async def test_a_pull_waits_quietly_while_its_lane_is_full_and_paused(broker: Broker, client: Redis) -> None:
    await broker.pause(Lane.BATCH)
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    pull = asyncio.create_task(session.pull(1, 10_000))
    await asyncio.sleep(0.1)
    before = await calls(client)
    await publish(broker, "s")
    await asyncio.sleep(0.2)
    assert await calls(client) - before == 1, "the publish alone"
    await broker.resume(Lane.BATCH)
    assert [delivery.ref for delivery in await asyncio.wait_for(pull, 5)] == [RequestRef("r")]


async def test_a_pull_for_the_reserve_waits_quietly_while_other_lanes_are_full(
    broker: Broker, client: Redis
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    pull = asyncio.create_task(session.pull(1, 10_000, reserved=1))
    await asyncio.sleep(0.1)
    before = await calls(client)
    await asyncio.sleep(0.2)
    assert await calls(client) == before
    await publish(broker, "s", lane=Lane.INTERACTIVE)
    assert [delivery.ref for delivery in await asyncio.wait_for(pull, 5)] == [RequestRef("s")]


async def test_a_consumer_without_the_interactive_lane_leaves_the_reserve_empty(
    broker: Broker, client: Redis
) -> None:
    await publish(broker, "r", "s")
    session = await broker.consume([Lane.BATCH], LONG_MS)
    assert len(await session.pull(2, 0, reserved=1)) == 1
    before = await calls(client)
    assert await session.pull(1, 200, reserved=1) == []
    assert await calls(client) - before <= 3


async def test_lapsed_deliveries_respect_the_reserve_too(broker: Broker) -> None:
    await publish(broker, *(f"b{number}" for number in range(4)))
    await publish(broker, "i", lane=Lane.INTERACTIVE)
    dead = await broker.consume(LANES, SHORT_MS)
    assert len(await dead.pull(10, 0)) == 5
    await asyncio.sleep(LAPSE_S)
    session = await broker.consume(LANES, SHORT_MS)
    taken = await session.pull(4, 0, reserved=2)
    assert [delivery.ref.request_id for delivery in taken] == ["i", "b0"]
    rest = await session.pull(10, 0)
    assert {delivery.ref.request_id for delivery in rest} == {"b1", "b2", "b3"}


async def test_a_lapsed_delivery_of_a_low_lane_is_reached_however_full_the_higher_ones_are(
    broker: Broker,
) -> None:
    await publish(broker, "low")
    await take(await broker.consume(LANES, SHORT_MS))
    await asyncio.sleep(LAPSE_S)
    await publish(broker, *(f"i{number}" for number in range(2 * PATIENCE)), lane=Lane.INTERACTIVE)
    session = await broker.consume(LANES, SHORT_MS)
    taken = [(await take(session)).ref.request_id for _ in range(PATIENCE + 1)]
    assert taken[-1] == "low"


async def test_what_is_released_into_a_lane_that_was_not_asked_is_found_later(broker: Broker) -> None:
    """The release is seen by a pull for the interactive lane alone; the other lane's sweep stays due."""
    await publish(broker, "r")
    leaving, session = await broker.consume(LANES, LONG_MS), await broker.consume(LANES, LONG_MS)
    first = await run(leaving)
    assert await session.pull(1, 0) == []  # its first sweeps are done
    assert await leaving.settle(first.delivery, first.epoch, Release())
    assert await session.pull(1, 0, reserved=1) == []
    assert (await take(session, 0)).ref == RequestRef("r")


async def test_a_release_into_a_paused_lane_is_found_when_it_is_resumed(broker: Broker) -> None:
    await publish(broker, "r")
    leaving, session = await broker.consume(LANES, LONG_MS), await broker.consume(LANES, LONG_MS)
    first = await run(leaving)
    assert await session.pull(1, 0) == []
    await broker.pause(Lane.BATCH)
    assert await leaving.settle(first.delivery, first.epoch, Release())
    waiting = asyncio.create_task(session.pull(1, 10_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await broker.resume(Lane.BATCH)
    assert [delivery.ref for delivery in await asyncio.wait_for(waiting, 5)] == [RequestRef("r")]


async def test_who_is_paused_is_one_set_that_anybody_can_read(
    broker: Broker, client: Redis, names: Names
) -> None:
    await broker.pause(Lane.BATCH, "large")
    await broker.pause(Lane.BATCH, "large")
    assert await client.smembers(names.paused) == {names.requests(Lane.BATCH, "large").encode()}
    await broker.resume(Lane.BATCH, "large")
    assert await client.exists(names.paused) == 0


async def test_a_turn_of_a_low_lane_does_not_take_the_reserve(broker: Broker) -> None:
    session = await broker.consume(LANES, LONG_MS)
    await broker.publish([Message(BODY, lane=Lane.INTERACTIVE) for _ in range(PATIENCE + 4)])
    await publish(broker, "low", "low2")
    for _ in range(PATIENCE):
        assert (await take(session)).message.lane is Lane.INTERACTIVE
    lanes = [delivery.message.lane for delivery in await session.pull(3, 0, reserved=3)]
    assert lanes == [Lane.INTERACTIVE] * 3
    lanes = [delivery.message.lane for delivery in await session.pull(2, 0, reserved=1)]
    assert lanes == [Lane.BATCH, Lane.INTERACTIVE]
