"""The size of a lane's policy holds, though the broker is asked only now and then."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from headrace.broker.errors import BrokerUnavailable
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.broker.queue_policy import QueuePolicy
from headrace.producer.gateway.cached import Cached
from headrace.producer.gateway.lane_depth import LaneDepths
from tests.unit.gateway.clock import Clock
from tests.unit.gateway.fake_broker import FakeBroker

BATCH = {Lane.BATCH: QueuePolicy(size=3)}


class Desk:
    """A gateway that publishes to the lane what was let in."""

    def __init__(self) -> None:
        self.clock, self.broker = Clock(), FakeBroker()
        self.waiting = self.broker.waiting[DEFAULT_POOL] = {Lane.BATCH: 0}
        self.depths = LaneDepths(self.broker, BATCH, self.clock)

    async def publish(self, count: int) -> int:
        """How many of so many were let in."""
        let_in = 0
        for _ in range(count):
            if await self.depths.enter(Lane.BATCH, DEFAULT_POOL) is None:
                self.waiting[Lane.BATCH] += 1
                self.depths.published(Lane.BATCH, DEFAULT_POOL)
                let_in += 1
        return let_in


async def test_a_lane_without_a_size_takes_all_and_nobody_is_asked() -> None:
    desk = Desk()
    for _ in range(10):
        assert await desk.depths.enter(Lane.STANDARD, DEFAULT_POOL) is None
    assert not desk.broker.asked


async def test_what_was_published_since_counts_though_the_broker_was_asked_once() -> None:
    desk = Desk()
    desk.waiting[Lane.BATCH] = 1
    assert await desk.publish(5) == 2
    assert desk.broker.asked["depths"] == 1


async def test_a_lane_that_has_drained_takes_more_within_a_second() -> None:
    desk = Desk()
    assert await desk.publish(9) == 3
    desk.waiting[Lane.BATCH] = 1
    assert await desk.publish(1) == 0
    desk.clock.now += 1
    assert await desk.publish(9) == 2


async def test_what_is_let_in_while_the_broker_answers_counts_afterwards() -> None:
    desk = Desk()
    let_in = await asyncio.gather(*(desk.depths.enter(Lane.BATCH, DEFAULT_POOL) for _ in range(9)))
    assert let_in.count(None) == 3
    assert desk.broker.asked["depths"] == 1


async def test_what_is_being_published_while_the_broker_is_asked_counts_once_it_has_answered() -> None:
    desk = Desk()
    desk.waiting[Lane.BATCH] = 2
    assert await desk.depths.enter(Lane.BATCH, DEFAULT_POOL) is None
    desk.clock.now += 1
    desk.broker.depths_gate.clear()
    next_one = asyncio.create_task(desk.depths.enter(Lane.BATCH, DEFAULT_POOL))
    for _ in range(3):
        await asyncio.sleep(0)
    assert desk.broker.asked["depths"] == 2
    desk.depths.published(Lane.BATCH, DEFAULT_POOL)
    desk.broker.depths_gate.set()
    assert await next_one is not None


async def test_a_publish_that_takes_longer_than_a_depth_lasts_counts_all_the_time() -> None:
    desk = Desk()
    desk.waiting[Lane.BATCH] = 2
    assert await desk.depths.enter(Lane.BATCH, DEFAULT_POOL) is None
    for _ in range(3):
        desk.clock.now += 1
        assert await desk.depths.enter(Lane.BATCH, DEFAULT_POOL) is not None


async def test_pools_have_depths_of_their_own() -> None:
    desk = Desk()
    desk.broker.waiting["other"] = {Lane.BATCH: 7}
    assert await desk.publish(1) == 1
    assert await desk.depths.enter(Lane.BATCH, "other") is not None


async def test_a_refusal_names_lane_and_size_and_when_to_come_back() -> None:
    desk = Desk()
    desk.waiting[Lane.BATCH] = 100
    for _ in range(20):  # ten leave a second
        await desk.publish(1)
        desk.clock.now += 1
        desk.waiting[Lane.BATCH] = max(43, desk.waiting[Lane.BATCH] - 10)
    desk.waiting[Lane.BATCH] = 100
    for _ in range(4):
        desk.clock.now += 1
        desk.waiting[Lane.BATCH] -= 10
        refusal = await desk.depths.enter(Lane.BATCH, DEFAULT_POOL)
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "LANE_FULL"
    assert refusal.facts == {"lane": "batch", "limit": "3"}
    assert 1_000 < (refusal.retry_after_ms or 0) <= 30_000


async def test_a_broker_that_is_away_lets_nobody_in_and_is_asked_again() -> None:
    desk = Desk()
    desk.broker.away = True
    with pytest.raises(BrokerUnavailable):
        await desk.publish(1)
    desk.broker.away = False
    assert await desk.publish(1) == 1


async def test_a_cached_value_is_loaded_once_for_all_who_wait_even_if_the_first_gives_up() -> None:
    loads, gate = 0, asyncio.Event()

    async def load() -> int:
        nonlocal loads
        loads += 1
        await gate.wait()
        return loads

    cached = Cached(load, 1, Clock())
    first, *others = [asyncio.create_task(cached.get()) for _ in range(4)]
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    gate.set()
    assert await asyncio.gather(*others) == [1, 1, 1]


async def test_of_a_load_that_fails_all_who_wait_hear_at_once_and_the_next_one_tries_anew() -> None:
    loads, gate = 0, asyncio.Event()

    async def load() -> int:
        nonlocal loads
        loads += 1
        await gate.wait()  # a broker that is frozen is given up after ten seconds
        if loads == 1:
            raise BrokerUnavailable("it did not answer in time")
        return loads

    cached = Cached(load, 1, Clock())
    waiting = [asyncio.create_task(cached.get()) for _ in range(4)]
    await asyncio.sleep(0)
    gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [BrokerUnavailable] * 4
    assert await cached.get() == 2
