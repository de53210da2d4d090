"""Answers that come late, when the same entry was taken anew."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import Broker, OpenOutcome, Release, Retry
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.redis_streams import session as session_module
from headrace.broker.redis_streams.link import Reply
from headrace.broker.redis_streams.scripts import Call
from headrace.broker.redis_streams.session import RedisSession
from tests.integration.redis.steps import LANES, LONG_MS, SHORT_MS, publish, run, take


def hold_reply(
    session: RedisSession, script: str, monkeypatch: pytest.MonkeyPatch, *, call: int = 1
) -> tuple[asyncio.Event, asyncio.Event]:
    """The server runs it; the reply to that call waits for the second event. The first tells that it ran."""
    ran, gate, runs, calls = asyncio.Event(), asyncio.Event(), session._scripts.run, 0

    async def slowly(asked: Call) -> Reply:
        nonlocal calls
        reply = await runs(asked)
        calls += asked.script == script
        if asked.script == script and calls == call:
            ran.set()
            await gate.wait()
        return reply

    monkeypatch.setattr(session._scripts, "run", slowly)
    return ran, gate


async def test_a_late_answer_to_a_settlement_does_not_forget_the_same_entry_taken_anew(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    assert isinstance(session, RedisSession)
    first = await take(session)
    ran, gate = hold_reply(session, "release", monkeypatch)
    releasing = asyncio.create_task(session.settle(first, 0, Release()))
    await ran.wait()
    assert await session.heartbeat() == [first]
    again = await take(session)
    gate.set()
    assert await releasing
    assert (await session.open(again)).outcome is OpenOutcome.RUN


async def test_a_retry_that_is_due_before_its_settlement_is_answered_is_taken(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(broker, "r")
    session = await broker.consume(LANES, LONG_MS)
    assert isinstance(session, RedisSession)
    first = await run(session)
    ran, gate = hold_reply(session, "retry", monkeypatch)
    parking = asyncio.create_task(session.settle(first.delivery, first.epoch, Retry(0, "busy")))
    await ran.wait()
    early = await session.pull(1, 0)
    gate.set()
    assert await parking
    late = await session.pull(1, 500)
    assert len([*early, *late]) == 1


async def test_a_heartbeat_does_not_call_lost_what_was_taken_anew_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CHUNK", 1)
    await publish(broker, "a", "b")
    session, other = await broker.consume(LANES, 300), await broker.consume(LANES, 300)
    assert isinstance(session, RedisSession)
    first, _ = await session.pull(2, 0)
    await asyncio.sleep(0.4)
    stolen = await other.pull(1, 0)
    assert [one.position for one in stolen] == [first.position]
    ran, gate = hold_reply(session, "heartbeat", monkeypatch, call=2)
    beat = asyncio.create_task(session.heartbeat())
    await ran.wait()
    assert await other.settle(stolen[0], 0, Release())
    again = await take(session)
    assert again.position == first.position
    gate.set()
    assert not any(one is again for one in await beat)


async def test_what_a_heartbeat_finds_lost_before_it_fails_is_told_by_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_CHUNK", 1)
    await publish(broker, "a", "b")
    session, other = await broker.consume(LANES, SHORT_MS), await broker.consume(LANES, SHORT_MS)
    assert isinstance(session, RedisSession)
    first, _ = await session.pull(2, 0)
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    [stolen] = await other.pull(1, 0)
    assert stolen.position == first.position
    runs, calls = session._scripts.run, 0

    async def cut(call: Call) -> Reply:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BrokerUnavailable("the connection was cut")
        return await runs(call)

    monkeypatch.setattr(session._scripts, "run", cut)
    with pytest.raises(BrokerUnavailable):
        await session.heartbeat()
    assert await session.heartbeat() == [first]


async def test_a_pull_that_sees_a_release_does_not_renew_what_its_own_consumer_let_lapse(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(broker, "r")
    silent, other = await broker.consume(LANES, SHORT_MS), await broker.consume(LANES, SHORT_MS)
    assert isinstance(silent, RedisSession)
    held = await take(silent)
    await publish(broker, "x")
    released = await take(other)
    monkeypatch.setattr(silent._queue._sweeps, "cursors", lambda now: ["", ""])  # its own sweeps are not due
    await asyncio.sleep(SHORT_MS / 1000 * 1.3)
    await other.heartbeat()
    assert await other.settle(released, 0, Release())
    assert [one.ref for one in await silent.pull(1, 0)] == [released.ref]
    assert [one.ref for one in await other.pull(2, 0)] == [held.ref]
