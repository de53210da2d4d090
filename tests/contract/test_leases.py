"""Leases: what nobody settles comes back, and what is renewed stays."""

from __future__ import annotations

import pytest

from headrace.broker.contract import OpenOutcome, Release
from headrace.broker.message import Message
from tests.contract.case import LANES, Case
from tests.contract.steps import (
    BODY,
    Writer,
    nothing_comes,
    publish,
    publish_one,
    start_writer,
    take,
    take_all,
)


async def test_a_dead_consumers_delivery_comes_to_another_as_the_same_delivery(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish(case.broker, Message(BODY, "r", headers={"a": "b"}))
    holder, delivery = await take(case, *sessions)
    other = sessions[1 - sessions.index(holder)]
    await case.lapse(holder)
    _, again = await take(case, other)
    assert (again.position, again.ref, again.message) == (delivery.position, delivery.ref, delivery.message)
    assert again.published_ms == delivery.published_ms


async def test_an_anonymous_request_keeps_its_id_when_it_is_redelivered(case: Case) -> None:
    sessions = await case.consumers(2)
    (ref,) = await publish(case.broker, Message(BODY))
    holder, _ = await take(case, *sessions)
    await case.lapse(holder)
    _, again = await take(case, sessions[1 - sessions.index(holder)])
    assert again.ref == ref


async def test_what_a_dead_consumer_held_says_that_somebody_had_it(case: Case) -> None:
    """Whether or not it was opened: who reads it next may die of it as the first one did."""
    first = await case.consume()
    await publish(case.broker, *(Message(BODY) for _ in range(3)))
    (session, delivery), *_ = await take_all(case, [first], 3)
    assert not delivery.redelivered
    opened = await session.open(delivery)
    second = await case.consume()
    await case.lapse(first)
    again = await take_all(case, [second], 3)
    assert all(delivery.redelivered for _, delivery in again)
    [(session, delivery)] = [each for each in again if each[1].position == delivery.position]
    assert (await session.open(delivery)).epoch > opened.epoch


@pytest.mark.slow
async def test_a_heartbeat_keeps_the_lease(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    holder, delivery = await take(case, *sessions)
    await nothing_comes(case, *sessions, within_ms=3 * case.lease_ms)
    assert case.lost == []
    writer = await Writer.open(holder, delivery)
    await writer.start()
    assert await writer.finish()


async def test_all_that_a_dead_consumer_held_comes_back(case: Case) -> None:
    first = await case.consume()
    await publish(case.broker, *(Message(BODY) for _ in range(12)))
    taken = await take_all(case, [first], 12)
    second = await case.consume()
    await case.lapse(first)
    again = await take_all(case, [second], 12)
    assert {d.position for _, d in again} == {d.position for _, d in taken}


async def test_a_heartbeat_after_the_lease_reports_what_was_lost(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(4)))
    taken = await take_all(case, sessions, 4)
    late = taken[0][0]
    other = sessions[1 - sessions.index(late)]
    held = {delivery.position for session, delivery in taken if session is late}
    await case.lapse(late)
    await take_all(case, [other], len(held))
    assert {delivery.position for delivery in await late.heartbeat()} == held
    assert await late.heartbeat() == []


async def test_a_consumer_that_was_late_may_go_on_with_new_work(case: Case) -> None:
    session = await case.consume()
    await publish_one(case.broker, "first")
    await take(case, session)
    await case.lapse(session)
    await session.heartbeat()
    case.thaw(session)
    await publish_one(case.broker, "second")
    served = ""
    while served != "second":  # the first may come again before it
        _, delivery = await take(case, session)
        writer = await Writer.open(session, delivery)
        await writer.start()
        assert await writer.finish()
        served = delivery.ref.request_id


@pytest.mark.slow
async def test_what_was_settled_never_comes_back(case: Case) -> None:
    first, second = await case.consumers(2)
    await publish(case.broker, *(Message(BODY) for _ in range(6)))
    for session, delivery in await take_all(case, [first, second], 6):
        writer = await Writer.open(session, delivery)
        await writer.start()
        assert await writer.finish()
    await case.lapse(first)
    await nothing_comes(case, second, within_ms=2 * case.lease_ms)
    await case.lapse(second)
    third = await case.consume()
    await nothing_comes(case, third, within_ms=2 * case.lease_ms)


async def test_what_a_closed_session_held_comes_back(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    holder, delivery = await take(case, *sessions)
    await case.leave(holder)
    await case.pass_time(case.lease_ms)
    _, again = await take(case, sessions[1 - sessions.index(holder)])
    assert again.position == delivery.position


@pytest.mark.parametrize("opened", [False, True], ids=["unopened", "in mid-answer"])
async def test_what_is_released_by_a_session_that_closes_goes_to_another_at_once(
    case: Case, opened: bool
) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    holder, delivery = await take(case, *sessions)
    other = sessions[1 - sessions.index(holder)]
    epoch = 0
    if opened:
        writer = await Writer.open(holder, delivery)
        await writer.start()
        await writer.say("a")
        epoch = writer.epoch
    assert await holder.settle(delivery, epoch, Release())
    await case.leave(holder)
    (again,) = await other.pull(1, case.lease_ms * 3 // 4)
    assert (again.position, again.ref) == (delivery.position, ref)
    successor = await Writer.open(other, again)
    assert successor.fold.text == ("a" if opened else "")


async def test_what_is_released_goes_to_another_though_the_session_stays(case: Case) -> None:
    if not case.leases_single_deliveries:
        pytest.skip("leases of whole partitions: a released delivery stays with its partition's owner")
    first, second = await case.consumers(2)
    await publish_one(case.broker)
    holder, delivery = await take(case, first, second)
    assert await holder.settle(delivery, 0, Release())
    (again,) = await (second if holder is first else first).pull(1, case.lease_ms // 4)
    assert again.position == delivery.position


async def test_what_is_released_is_not_lost_when_nobody_else_is_there(case: Case) -> None:
    session = await case.consume()
    await publish_one(case.broker)
    writer = await start_writer(case, session)
    assert await session.settle(writer.delivery, writer.epoch, Release())
    assert not await writer.say("too late")
    _, again = await take(case, session)
    assert (await session.open(again)).outcome is OpenOutcome.RUN


async def test_session_names_are_unique(case: Case) -> None:
    other = await case.connect()
    sessions = [await case.consume() for _ in range(3)]
    sessions.append(await other.consume(LANES, case.lease_ms))
    assert len({session.name for session in sessions}) == 4
    assert all(session.lease_ms == case.lease_ms for session in sessions)
    await sessions[-1].close()
