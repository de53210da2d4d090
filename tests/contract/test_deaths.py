"""Deaths: what the next owner must hold against a request, and what not."""

from __future__ import annotations

import pytest

from headrace.broker.contract import ConsumerSession, Release, Retry, Settlement
from headrace.broker.events import Handed
from headrace.broker.fold import Deaths
from headrace.broker.message import Message
from tests.contract.case import Case
from tests.contract.steps import BODY, Writer, publish, publish_one, read_log, start_writer, take, take_all


async def successor(case: Case, *sessions: ConsumerSession) -> Writer:
    return await Writer.open(*(await take(case, *sessions)))


async def kill(case: Case, writer: Writer) -> Writer:
    """Lets an owner die; a new consumer opens what it held."""
    await case.lapse(writer.session)
    return await successor(case, await case.consume())


async def test_an_owner_that_is_killed_has_died_with_its_request(case: Case) -> None:
    await publish_one(case.broker)
    first = await start_writer(case, await case.consume())
    second = await kill(case, first)
    assert second.fold.deaths == Deaths(1, 0)
    assert await second.append(second.started(alone=True))
    third = await kill(case, second)
    assert third.fold.deaths == Deaths(2, 1)
    assert third.fold.started is not None
    assert (third.fold.started.deaths, third.fold.started.alone) == (1, True)


async def test_an_owner_that_dies_before_it_began_is_not_held_against_the_request(case: Case) -> None:
    await publish_one(case.broker)
    first = await Writer.open(*(await take(case, await case.consume())))
    assert (await kill(case, first)).fold.deaths == Deaths()


async def test_a_token_acquits_the_request(case: Case) -> None:
    await publish_one(case.broker)
    first = await start_writer(case, await case.consume())
    await first.say("a")
    assert (await kill(case, first)).fold.deaths == Deaths()


@pytest.mark.parametrize("settlement", [Release("drain"), Retry(1, "busy")], ids=["released", "retried"])
async def test_an_owner_that_hands_the_request_back_has_not_died(case: Case, settlement: Settlement) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    first = await start_writer(case, *sessions)
    assert await first.session.settle(first.delivery, first.epoch, settlement)
    await case.leave(first.session)
    await case.pass_time(10)
    second = await successor(case, sessions[1 - sessions.index(first.session)])
    assert second.fold.deaths == Deaths()
    await second.start()
    assert await second.finish()
    events = [entry.event for entry in await read_log(case.broker, ref)]
    reason = "drain" if isinstance(settlement, Release) else "busy"
    assert Handed(first.epoch, reason) in events


async def test_earlier_deaths_stay_when_a_later_owner_hands_the_request_back(case: Case) -> None:
    await publish_one(case.broker)
    second = await kill(case, await start_writer(case, await case.consume()))
    assert await second.start()
    assert await second.session.settle(second.delivery, second.epoch, Release())
    third = await successor(case, second.session)
    assert third.fold.deaths == Deaths(1, 0)
    assert await third.session.settle(third.delivery, third.epoch, Release()), "before it began"
    assert (await successor(case, third.session)).fold.deaths == Deaths(1, 0)


async def test_a_delivery_released_unopened_leaves_no_trace_in_the_log(case: Case) -> None:
    ref = await publish_one(case.broker)
    session = await case.consume()
    _, delivery = await take(case, session)
    assert await session.settle(delivery, 0, Release("unopened"))
    writer = await start_writer(case, session)
    assert await writer.finish()
    assert not any(isinstance(entry.event, Handed) for entry in await read_log(case.broker, ref))


async def test_an_overtaken_owner_does_not_speak_for_its_successor(case: Case) -> None:
    sessions = await case.consumers(2)
    await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    released = await late.session.settle(late.delivery, late.epoch, Release("late"))
    assert not (released and case.leases_single_deliveries)
    assert (await kill(case, owner)).fold.deaths == Deaths(2, 0)


async def test_work_that_moves_to_a_consumer_that_joins_was_not_deadly(case: Case) -> None:
    if case.leases_single_deliveries:
        pytest.skip("single deliveries never move from a consumer that is alive")
    first = await case.consume()
    await publish(case.broker, *(Message(BODY, f"r{i}") for i in range(12)))
    for session, delivery in await take_all(case, [first], 12):
        assert await (await Writer.open(session, delivery)).start()
    second = await case.consume()
    moved = await case.hear_of_loss()
    assert 0 < moved < 12
    for session, delivery in await take_all(case, [second], moved):
        assert (await Writer.open(session, delivery)).fold.deaths == Deaths()
