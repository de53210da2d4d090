"""Cancelling: a mark that reaches the request wherever it is, and no other one."""

from __future__ import annotations

import asyncio

from headrace.broker.contract import CancelResult, Retry
from headrace.broker.message import Message, RequestRef
from tests.contract.case import Case
from tests.contract.steps import BODY, PATIENCE_S, Writer, publish, publish_one, start_writer, take, take_all


async def test_a_queued_request_is_found_cancelled_when_it_is_opened(case: Case) -> None:
    ref, other = await publish(case.broker, Message(BODY, "r"), Message(BODY, "other"))
    assert await case.broker.cancel(ref) is CancelResult.MARKED
    session = await case.consume()
    for _, delivery in await take_all(case, [session], 2):
        assert (await session.open(delivery)).cancelled == (delivery.ref != other)


async def test_a_running_request_is_announced_to_consumers_and_stays_marked_for_a_successor(
    case: Case,
) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    writer = await start_writer(case, *sessions)
    marks = writer.session.cancellations()
    assert await case.broker.cancel(ref) is CancelResult.MARKED
    assert await asyncio.wait_for(anext(marks), PATIENCE_S) == ref
    await case.lapse(writer.session)
    session, again = await take(case, sessions[1 - sessions.index(writer.session)])
    assert (await session.open(again)).cancelled


async def test_every_session_hears_of_every_cancellation(case: Case) -> None:
    sessions = await case.consumers(2)
    refs = await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(3)))
    followed = [session.cancellations() for session in sessions]
    for ref in refs:
        await case.broker.cancel(ref)
    for marks in followed:
        assert [await asyncio.wait_for(anext(marks), PATIENCE_S) for _ in refs] == refs


async def test_a_follower_that_already_waits_hears_of_a_cancellation(case: Case) -> None:
    session = await case.consume()
    ref = await publish_one(case.broker)
    marks = session.cancellations()
    waiting = asyncio.ensure_future(anext(marks))
    await asyncio.sleep(0.02)
    await case.broker.cancel(ref)
    assert await asyncio.wait_for(waiting, PATIENCE_S) == ref


async def test_a_cancellation_keeps_tenants_apart(case: Case) -> None:
    mine, theirs = await publish(
        case.broker, Message(BODY, "r", tenant="mine"), Message(BODY, "r", tenant="theirs")
    )
    await case.broker.cancel(mine)
    session = await case.consume()
    for _, delivery in await take_all(case, [session], 2):
        assert (await session.open(delivery)).cancelled == (delivery.ref != theirs)


async def test_a_request_that_waits_for_its_retry_can_be_cancelled(case: Case) -> None:
    ref = await publish_one(case.broker)
    session = await case.consume()
    writer = await start_writer(case, session)
    assert await session.settle(writer.delivery, writer.epoch, Retry(case.lease_ms // 2, "busy"))
    assert await case.broker.cancel(ref) is CancelResult.MARKED
    await case.pass_time(case.lease_ms // 2)
    _, again = await take(case, session)
    assert (await session.open(again)).cancelled


async def test_an_anonymous_request_is_cancelled_by_its_position(case: Case) -> None:
    (ref,) = await publish(case.broker, Message(BODY))
    assert await case.broker.cancel(ref) in (CancelResult.MARKED, CancelResult.UNKNOWN)
    session, delivery = await take(case, await case.consume())
    assert (await session.open(delivery)).cancelled


async def test_after_the_end_it_is_too_late(case: Case) -> None:
    ref = await publish_one(case.broker)
    writer = await start_writer(case, await case.consume())
    assert await writer.finish()
    assert await case.broker.cancel(ref) is CancelResult.ENDED


async def test_an_unknown_id_is_said_to_be_unknown(case: Case) -> None:
    assert await case.broker.cancel(RequestRef("nobody")) is CancelResult.UNKNOWN


async def test_a_mark_does_not_hit_a_request_that_is_published_later_under_the_id(case: Case) -> None:
    assert await case.broker.cancel(RequestRef("r")) is CancelResult.UNKNOWN
    await case.pass_time(20)
    await publish_one(case.broker, "r")
    session, delivery = await take(case, await case.consume())
    assert not (await session.open(delivery)).cancelled


async def test_cancelling_twice_is_as_good_as_once(case: Case) -> None:
    ref = await publish_one(case.broker)
    assert await case.broker.cancel(ref) is CancelResult.MARKED
    assert await case.broker.cancel(ref) is CancelResult.MARKED
    session, delivery = await take(case, await case.consume())
    opened = await session.open(delivery)
    assert opened.cancelled
    writer = await Writer.open(session, delivery)
    assert await writer.finish()
    assert await case.broker.cancel(ref) is CancelResult.ENDED
