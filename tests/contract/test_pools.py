"""Pools: queues of their own, and a way from one to another."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import OpenOutcome, PassOn, Retry
from headrace.broker.errors import BrokerError
from headrace.broker.events import Moved
from headrace.broker.fold import Deaths, fold
from headrace.broker.message import DEFAULT_POOL, Lane, Message
from tests.contract.case import Case
from tests.contract.steps import (
    BODY,
    Writer,
    publish,
    publish_one,
    read_log,
    read_results,
    read_until,
    shown,
    start_writer,
    take,
)

LARGE = "large"


async def pass_on(case: Case, message: Message) -> Writer:
    """Publishes a request, and lets a consumer of the default pool pass it on, before it began."""
    await publish(case.broker, message)
    session, delivery = await take(case, await case.consume())
    writer = await Writer.open(session, delivery)
    assert await session.settle(delivery, writer.epoch, PassOn(LARGE))
    return writer


async def test_a_pool_serves_its_own_requests_only(case: Case) -> None:
    mine, other = await publish(case.broker, Message(BODY, "a", pool=LARGE), Message(BODY, "b"))
    large, default = await case.consume(pool=LARGE), await case.consume()
    _, delivery = await take(case, large)
    assert (delivery.ref, delivery.message.pool) == (mine, LARGE)
    assert await large.pull(5, 0) == []
    _, delivery = await take(case, default)
    assert (delivery.ref, delivery.message.pool) == (other, DEFAULT_POOL)
    assert await default.pull(5, 0) == []


async def test_the_log_and_the_line_of_a_pools_request_are_found_like_any_others(case: Case) -> None:
    (ref,) = await publish(case.broker, Message(BODY, pool=LARGE))
    reader = asyncio.create_task(read_until(case.broker.watch(ref)))
    writer = await start_writer(case, await case.consume(pool=LARGE))
    assert writer.delivery.position == ref.request_id
    await writer.say("a")
    assert await writer.finish(b"line")
    assert fold(entry.event for entry in await reader).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_a_retry_comes_back_in_its_own_pool_and_the_figures_are_by_pool(case: Case) -> None:
    await publish(case.broker, Message(BODY, "a", pool=LARGE), Message(BODY, "b", pool=LARGE))
    session = await case.consume(pool=LARGE)
    writer = await start_writer(case, session)
    large, default = await case.broker.stats(LARGE), await case.broker.stats()
    standard = large.lanes[Lane.STANDARD]
    assert (standard.waiting, standard.leased) == (1, 1)
    assert [(lease.consumer, lease.held) for lease in large.leases] == [(session.name, 1)]
    assert (default.lanes[Lane.STANDARD].waiting, default.leases) == (0, [])
    assert await session.settle(writer.delivery, writer.epoch, Retry(case.lease_ms // 8, "busy"))
    assert (await case.broker.stats(LARGE)).retrying == 1
    assert (await case.broker.stats()).retrying == 0
    await case.pass_time(case.lease_ms // 8)
    seen = {(await take(case, session))[1].ref.request_id for _ in range(2)}
    assert seen == {"a", "b"}


async def test_pools_are_known_from_their_first_request_or_consumer(case: Case) -> None:
    assert await case.broker.pools() == [DEFAULT_POOL]
    await publish(case.broker, Message(BODY, pool=LARGE))
    await case.consume([Lane.BATCH], pool="small")
    assert sorted(await case.broker.pools()) == [DEFAULT_POOL, LARGE, "small"]


async def test_a_name_that_no_pool_can_have_is_refused(case: Case) -> None:
    with pytest.raises(BrokerError, match="pool"):
        await case.broker.publish([Message(BODY, pool="a.b")])
    with pytest.raises(BrokerError, match="pool"):
        await case.consume(pool="a/b")


# ------------------------------------------------------------------------------------------- passing on


async def test_a_request_that_is_passed_on_arrives_as_it_was(case: Case) -> None:
    first = await pass_on(case, Message(BODY, "r", Lane.BATCH, "t", headers={"a": "b"}))
    _, delivery = await take(case, await case.consume(pool=LARGE))
    sent, came = first.delivery, delivery
    assert (came.position, came.ref, came.published_ms) == (sent.position, sent.ref, sent.published_ms)
    assert came.message.pool == LARGE
    assert (came.message.lane, came.message.tenant, came.message.headers) == (Lane.BATCH, "t", {"a": "b"})
    assert came.message.body_hash == sent.message.body_hash
    default = (await case.broker.stats()).lanes[Lane.BATCH]
    assert (default.waiting, default.leased) == (0, 0)


async def test_an_anonymous_request_keeps_its_id_when_it_is_passed_on(case: Case) -> None:
    first = await pass_on(case, Message(BODY))
    writer = await start_writer(case, await case.consume(pool=LARGE))
    assert writer.delivery.ref == first.delivery.ref
    assert await writer.finish()
    assert (await shown(case.broker, first.delivery.ref)).ended


async def test_readers_follow_a_request_to_the_other_pool(case: Case) -> None:
    early = asyncio.create_task(read_until(case.broker.watch(await publish_one(case.broker))))
    session, delivery = await take(case, await case.consume())
    opened = await Writer.open(session, delivery)
    assert await session.settle(delivery, opened.epoch, PassOn(LARGE))
    writer = await start_writer(case, await case.consume(pool=LARGE))
    await writer.say("a")
    middle = asyncio.create_task(read_until(case.broker.watch(delivery.ref)))
    await writer.say("b")
    assert await writer.finish(b"line")
    whole = await read_log(case.broker, delivery.ref)
    assert any(isinstance(entry.event, Moved) and entry.event.pool == LARGE for entry in whole)
    for entries in (whole, await early, await middle):
        state = fold(entry.event for entry in entries)
        assert (state.text, state.restarts, state.ended) == ("ab", 0, True)
    assert [result.line for result in await read_results(case)] == [b"line"]
    for entry in whole:
        assert await read_until(case.broker.watch(delivery.ref, entry.cursor)) == whole


async def test_a_request_that_was_passed_on_may_come_back(case: Case) -> None:
    first = await pass_on(case, Message(BODY, "r"))
    large = await case.consume(pool=LARGE)
    _, delivery = await take(case, large)
    there = await Writer.open(large, delivery)
    assert await large.settle(delivery, there.epoch, PassOn(DEFAULT_POOL))
    session, again = await take(case, first.session)
    writer = await Writer.open(session, again)
    assert again.position == first.delivery.position
    await writer.start()
    await writer.say("a")
    assert await writer.finish(b"line")
    assert (await shown(case.broker, again.ref)).text == "a"
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_one_that_came_back_goes_on_with_its_tokens_when_its_owner_dies(case: Case) -> None:
    first = await pass_on(case, Message(BODY, "r"))
    there = await Writer.open(*(await take(case, await case.consume(pool=LARGE))))
    assert await there.session.settle(there.delivery, there.epoch, PassOn(DEFAULT_POOL))
    begun = await start_writer(case, first.session)
    await begun.say("a")
    await case.lapse(first.session)
    heir = await Writer.open(*(await take(case, await case.consume())))
    assert heir.fold.text == "a"
    await heir.start()
    await heir.say("b")
    assert await heir.finish(b"line")
    state = await shown(case.broker, heir.delivery.ref)
    assert (state.text, state.restarts) == ("ab", 0)
    assert [result.line for result in await read_results(case)] == [b"line"]


async def test_nobody_died_of_a_request_that_was_passed_on(case: Case) -> None:
    await publish_one(case.broker)
    session = await case.consume()
    writer = await start_writer(case, session)
    assert await session.settle(writer.delivery, writer.epoch, PassOn(LARGE))
    large, delivery = await take(case, await case.consume(pool=LARGE))
    opened = await large.open(delivery)
    assert opened.outcome is OpenOutcome.RUN
    assert opened.state is not None
    assert opened.state.deaths == Deaths()


async def test_a_cancellation_follows_a_request_to_the_other_pool(case: Case) -> None:
    ref = await publish_one(case.broker)
    await case.broker.cancel(ref)
    session, delivery = await take(case, await case.consume())
    opened = await session.open(delivery)
    assert await session.settle(delivery, opened.epoch, PassOn(LARGE))
    large, again = await take(case, await case.consume(pool=LARGE))
    assert (await large.open(again)).cancelled


async def test_what_was_passed_on_is_retried_in_the_other_pool(case: Case) -> None:
    first = await pass_on(case, Message(BODY, "r"))
    large = await case.consume(pool=LARGE)
    writer = await start_writer(case, large)
    assert await large.settle(writer.delivery, writer.epoch, Retry(1, "busy"))
    await case.pass_time(10)
    _, again = await take(case, large)
    assert (again.position, again.message.pool) == (first.delivery.position, LARGE)
    assert await first.session.pull(1, 0) == []


async def test_an_overtaken_owner_passes_nothing_on(case: Case) -> None:
    sessions = await case.consumers(2)
    ref = await publish_one(case.broker)
    late = await start_writer(case, *sessions)
    await case.lapse(late.session)
    owner = await start_writer(case, sessions[1 - sessions.index(late.session)])
    assert not await late.session.settle(late.delivery, late.epoch, PassOn(LARGE))
    await owner.say("a")
    assert await owner.finish(b"right")
    assert (await shown(case.broker, ref)).text == "a"
    assert await (await case.consume(pool=LARGE)).pull(5, 0) == []
    assert [result.line for result in await read_results(case)] == [b"right"]
