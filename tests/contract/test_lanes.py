"""Lanes: a low one is served in the end, the interactive one has a reserve, and any can be paused."""

from __future__ import annotations

import asyncio

from headrace.broker.lanes import PATIENCE
from headrace.broker.message import Lane, Message
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    PATIENCE_S,
    Writer,
    nothing_comes,
    publish,
    publish_one,
    start_writer,
    take,
    take_all,
)

POOL = "large"


async def test_a_low_lane_waits_for_a_bounded_number_of_deliveries_from_higher_ones(case: Case) -> None:
    higher = [Message(BODY, lane=Lane.INTERACTIVE) for _ in range(2 * PATIENCE)]
    await publish(case.broker, *higher, Message(BODY, lane=Lane.BATCH), Message(BODY, lane=Lane.STANDARD))
    session = await case.consume()
    lanes = [(await take(case, session))[1].message.lane for _ in range(PATIENCE + 2)]
    assert lanes == [Lane.INTERACTIVE] * PATIENCE + [Lane.STANDARD, Lane.BATCH]


async def test_a_turn_of_a_low_lane_is_one_delivery(case: Case) -> None:
    higher = [Message(BODY, lane=Lane.INTERACTIVE) for _ in range(2 * PATIENCE)]
    await publish(case.broker, *higher, *(Message(BODY, lane=Lane.BATCH) for _ in range(4)))
    session = await case.consume()
    for _ in range(PATIENCE):
        await take(case, session)
    lanes = [delivery.message.lane for delivery in await session.pull(5, 0)]
    assert lanes == [Lane.BATCH] + [Lane.INTERACTIVE] * 4


async def test_ageing_goes_on_from_pull_to_pull_whatever_their_limits(case: Case) -> None:
    higher = [Message(BODY, lane=Lane.INTERACTIVE) for _ in range(3 * PATIENCE)]
    await publish(case.broker, *higher, Message(BODY, lane=Lane.BATCH))
    session, taken = await case.consume(), []
    for limit in (3, 7, 5, 2, 7, 5, 4):
        taken += [delivery.message.lane for delivery in await session.pull(limit, 0)]
    assert taken.index(Lane.BATCH) < PATIENCE + 7


async def test_the_last_places_are_for_the_interactive_lane(case: Case) -> None:
    session = await case.consume()
    await publish(case.broker, *(Message(BODY, lane=Lane.BATCH) for _ in range(6)))
    taken = await take_all(case, [session], 1)
    taken += [(session, delivery) for delivery in await session.pull(5, 0, reserved=2)]
    assert len(taken) == 4
    assert await session.pull(2, 0, reserved=2) == []
    await publish(case.broker, *(Message(BODY, lane=Lane.INTERACTIVE) for _ in range(3)))
    interactive = 0
    while interactive < 3:
        pulled = [delivery.message.lane for delivery in await session.pull(3, PATIENCE_S * 1000, reserved=2)]
        interactive += pulled.count(Lane.INTERACTIVE)
        assert pulled.count(Lane.BATCH) <= 1


async def test_a_pull_for_the_reserve_alone_waits_for_an_interactive_request(case: Case) -> None:
    session = await case.consume()
    await publish(case.broker, Message(BODY, lane=Lane.BATCH))
    pull = asyncio.create_task(session.pull(2, 60_000, reserved=2))
    await asyncio.sleep(0.02)
    await publish(case.broker, Message(BODY, lane=Lane.STANDARD))
    await asyncio.sleep(0.02)
    assert not pull.done()
    (ref,) = await publish(case.broker, Message(BODY, lane=Lane.INTERACTIVE))
    assert [delivery.ref for delivery in await asyncio.wait_for(pull, PATIENCE_S)] == [ref]


async def test_a_paused_lane_gives_nothing_and_the_others_go_on(case: Case) -> None:
    session = await case.consume()
    await case.pause(Lane.BATCH)
    await publish(case.broker, Message(BODY, lane=Lane.BATCH), Message(BODY, lane=Lane.STANDARD))
    _, delivery = await take(case, session)
    assert delivery.message.lane is Lane.STANDARD
    await nothing_comes(case, session, within_ms=case.lease_ms // 2)
    stats = await case.broker.stats()
    assert [lane for lane, figures in stats.lanes.items() if figures.paused] == [Lane.BATCH]
    assert stats.lanes[Lane.BATCH].waiting == 1
    await case.broker.resume(Lane.BATCH)
    _, delivery = await take(case, session)
    assert delivery.message.lane is Lane.BATCH
    assert not any(figures.paused for figures in (await case.broker.stats()).lanes.values())


async def test_resuming_wakes_a_pull_that_waits_and_pausing_wakes_none(case: Case) -> None:
    session = await case.consume()
    pull = asyncio.create_task(session.pull(1, 60_000))
    await case.pause(Lane.STANDARD)
    await publish_one(case.broker)
    await asyncio.sleep(0.05)
    assert not pull.done()
    await case.broker.resume(Lane.STANDARD)
    (delivery,) = await asyncio.wait_for(pull, PATIENCE_S)
    assert delivery.message.lane is Lane.STANDARD


async def test_what_runs_in_a_paused_lane_goes_on_to_its_end(case: Case) -> None:
    await publish_one(case.broker)
    session = await case.consume()
    writer = await start_writer(case, session)
    await case.pause(Lane.STANDARD)
    await case.pass_time(2 * case.lease_ms)
    assert case.lost == []
    assert await writer.say("a")
    assert await writer.finish()


async def test_what_a_dead_consumer_held_waits_until_its_lane_is_resumed(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    holder, delivery = await take(case, *sessions)
    other = sessions[1 - sessions.index(holder)]
    await case.pause(Lane.STANDARD)
    await case.lapse(holder)
    assert await other.pull(5, 0) == []
    await case.broker.resume(Lane.STANDARD)
    _, again = await take(case, other)
    assert again.position == delivery.position


async def test_a_lane_stays_paused_for_consumers_that_come_later(case: Case) -> None:
    await (await case.connect()).pause(Lane.STANDARD)
    await publish_one(case.broker)
    session = await case.consume()
    await nothing_comes(case, session, within_ms=case.lease_ms // 4)
    await case.broker.resume(Lane.STANDARD)
    assert await take(case, session)


async def test_a_lane_is_paused_in_one_pool_only(case: Case) -> None:
    await publish(case.broker, Message(BODY, "a"), Message(BODY, "b", pool=POOL))
    await case.pause(Lane.STANDARD, POOL)
    default, large = await case.consume(), await case.consume(pool=POOL)
    writer = await Writer.open(*(await take(case, default)))
    assert writer.delivery.ref.request_id == "a"
    assert await large.pull(5, 0) == []
    assert (await case.broker.stats(POOL)).lanes[Lane.STANDARD].paused
    assert not (await case.broker.stats()).lanes[Lane.STANDARD].paused
