"""Pulling: by order of lanes, never more than asked for, never the same thing twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headrace.broker.message import Lane, Message
from tests.contract.case import Case
from tests.contract.steps import BODY, publish, publish_one, take_all


async def test_lanes_are_served_in_the_order_of_preference(case: Case) -> None:
    lanes = [Lane.BATCH, Lane.STANDARD, Lane.INTERACTIVE]
    await publish(case.broker, *(Message(BODY, lane=lane) for lane in lanes for _ in range(2)))
    session = await case.consume([Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH])
    taken = [d.message.lane for _ in range(6) for d in await session.pull(1, 0)]
    assert taken == [lane for lane in reversed(lanes) for _ in range(2)]


async def test_one_pull_fills_up_from_the_next_lane(case: Case) -> None:
    await publish(case.broker, Message(BODY, lane=Lane.BATCH), Message(BODY, lane=Lane.INTERACTIVE))
    session = await case.consume([Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH])
    assert [d.message.lane for d in await session.pull(5, 0)] == [Lane.INTERACTIVE, Lane.BATCH]


async def test_other_lanes_are_left_alone(case: Case) -> None:
    await publish(case.broker, Message(BODY, lane=Lane.INTERACTIVE))
    assert await (await case.consume([Lane.BATCH])).pull(5, 0) == []
    assert len(await take_all(case, [await case.consume([Lane.INTERACTIVE])], 1)) == 1


async def test_a_pull_never_returns_more_than_its_limit(case: Case) -> None:
    lanes = (Lane.INTERACTIVE, Lane.STANDARD)
    await publish(case.broker, *(Message(BODY, lane=lane) for lane in lanes for _ in range(5)))
    session = await case.consume()
    assert [len(await session.pull(3, 0)) for _ in range(5)] == [3, 3, 3, 1, 0]


@pytest.mark.slow
async def test_what_is_held_is_not_returned_again_however_often_one_pulls(case: Case) -> None:
    await publish(case.broker, *(Message(BODY) for _ in range(3)))
    session = await case.consume()
    held = await session.pull(10, 0)
    assert len(held) == 3
    for _ in range(8):
        await case.pass_time(case.lease_ms // 2)
        assert await session.pull(10, 0) == []
    assert case.lost == []


async def test_two_sessions_share_the_work_and_never_get_the_same(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish(case.broker, *(Message(BODY) for _ in range(20)))
    taken = await take_all(case, sessions, 20)
    assert len({delivery.position for _, delivery in taken}) == 20


async def test_a_pull_waits_for_what_is_published_meanwhile(case: Case) -> None:
    session = await case.consume()
    pull = asyncio.create_task(session.pull(1, 60_000))
    await asyncio.sleep(0.02)
    assert not pull.done()
    ref = await publish_one(case.broker)
    (delivery,) = await asyncio.wait_for(pull, 5)
    assert delivery.ref == ref


async def test_a_waiting_pull_never_returns_more_than_its_limit(case: Case) -> None:
    session = await case.consume()
    pull = asyncio.create_task(session.pull(2, 60_000))
    await asyncio.sleep(0.02)
    await publish(case.broker, *(Message(BODY, lane=lane) for lane in (Lane.BATCH, Lane.STANDARD) * 4))
    first = await asyncio.wait_for(pull, 5)
    assert 1 <= len(first) <= 2
    assert len(await take_all(case, [session], 8 - len(first))) == 8 - len(first)


async def test_a_pull_returns_empty_handed_after_its_time(case: Case) -> None:
    session = await case.consume()
    pull = asyncio.create_task(session.pull(1, 60))
    await asyncio.sleep(0.005)
    await case.pass_time(80)
    assert await asyncio.wait_for(pull, 5) == []


async def test_a_pull_that_is_cancelled_loses_nothing(case: Case) -> None:
    victim, other = await case.consumers(2)
    pull = asyncio.create_task(victim.pull(5, 60_000))
    await asyncio.sleep(0.02)
    await publish(case.broker, *(Message(BODY) for _ in range(5)))
    pull.cancel()
    taken: list[str] = []
    with contextlib.suppress(asyncio.CancelledError):
        taken += [delivery.position for delivery in await pull]
    await case.lapse(victim)
    taken += [d.position for _, d in await take_all(case, [other], 5)]
    assert len(set(taken)) == 5


async def test_heartbeats_go_on_while_a_pull_waits(case: Case) -> None:
    session = await case.consume()
    await publish_one(case.broker)
    assert len(await session.pull(1, 0)) == 1
    pull = asyncio.create_task(session.pull(1, 600_000))
    await case.pass_time(2 * case.lease_ms)
    assert case.lost == []
    pull.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await pull
