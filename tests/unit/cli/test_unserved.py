"""Who waits in vain is told so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from headrace.broker.contract import ConsumerEntry, LaneStats, QueueStats, Serves
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.message import Lane
from headrace.cli import unserved as module
from headrace.cli.unserved import noticing_silence, unserved


def stats(waiting: int = 0, leased: int = 0, retrying: int = 0, lane: Lane = Lane.BATCH) -> QueueStats:
    lanes = {each: LaneStats(0, 0, 0) for each in Lane}
    return QueueStats(lanes | {lane: LaneStats(waiting, leased, 10)}, [], retrying, 0)


def up(pool: str, *lanes: Lane) -> ConsumerEntry:
    return ConsumerEntry("c", pool, lanes or tuple(Lane), Serves(("m",), 1), 0)


def test_a_pool_where_something_waits_and_no_consumer_is_up_is_named_with_the_command() -> None:
    sentence = "no consumer of the pool nobody is up: start one with `headrace consumer --pool nobody`"
    for waits in (stats(waiting=20), stats(leased=1), stats(retrying=1)):
        assert unserved("nobody", waits, [up(""), up("vision")]) == sentence
    assert unserved("", stats(waiting=1), []) == (
        "no consumer of the default pool is up: start one with `headrace consumer`"
    )


def test_a_pool_that_is_served_or_empty_is_not_named() -> None:
    assert unserved("vision", stats(waiting=20), [up("vision")]) is None
    assert unserved("vision", stats(), []) is None


def test_a_lane_that_none_of_its_consumers_serves_is_named() -> None:
    consumers = [up("vision", Lane.INTERACTIVE), up("", Lane.BATCH)]
    assert unserved("vision", stats(waiting=1), consumers) == (
        "no consumer of the pool vision serves batch: start one with "
        "`headrace consumer --pool vision --lane batch`"
    )
    assert unserved("vision", stats(waiting=1, lane=Lane.INTERACTIVE), consumers) is None


class Slow:
    """Events that come when they are let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.closed = False

    async def events(self) -> AsyncGenerator[str]:
        try:
            yield "first"
            await self.go.wait()
            yield "second"
        finally:
            self.closed = True


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.001)


async def test_a_silence_is_told_once_and_no_event_is_lost(soon: None) -> None:
    slow, told, asked = Slow(), list[str](), 0

    async def say() -> str | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise BrokerUnavailable("not now")
        if asked == 5:
            slow.go.set()
        return "nobody serves it" if asked > 2 else None

    shown = [event async for event in noticing_silence(slow.events(), say, told.append)]
    assert shown == ["first", "second"]
    assert told == ["nobody serves it"]


async def test_who_stops_reading_in_a_silence_closes_the_events(soon: None) -> None:
    slow, silent = Slow(), asyncio.Event()

    async def say() -> None:
        silent.set()

    async def read() -> None:
        async for _ in noticing_silence(slow.events(), say, print):
            pass

    reading = asyncio.create_task(read())
    await silent.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert slow.closed
