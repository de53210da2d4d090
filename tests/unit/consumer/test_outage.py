"""A broker that is away: everything waits for it, and it is told once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.broker.errors import BrokerRefused, BrokerUnavailable
from headrace.consumer.outage import QUIET_S, Outage
from tests.unit.consumer.fakes import Rig, delivery, eventually

HASTE_S = 0.001


class Server:
    """Answers as long as it is up. `now` is its time, and everybody's."""

    def __init__(self) -> None:
        self.up = False
        self.calls = 0
        self.now = 1000.0

    async def call(self) -> str:
        self.calls += 1
        if not self.up:
            raise BrokerUnavailable("gone")
        return "answer"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def outage(server: Server) -> Outage:
    return Outage(lambda: server.now)


@pytest.fixture(autouse=True)
def level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def told(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == level]


async def test_calls_are_repeated_until_the_broker_is_back_and_all_of_it_is_told_once(
    server: Server, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [asyncio.create_task(outage.insist(server.call, f"call {n}", HASTE_S)) for n in range(12)]
    await eventually(lambda: server.calls >= 40)
    server.now += 2 * QUIET_S  # however long it lasts
    failed = server.calls
    await eventually(lambda: server.calls > failed)
    server.up = True
    assert await asyncio.gather(*calls) == ["answer"] * 12
    [warning], [back] = told(caplog), told(caplog, logging.INFO)
    assert warning.endswith("call 0 failed: gone")
    failures = server.calls - 12
    assert back == f"the broker is back after {2 * QUIET_S:.1f} s; calls that failed: {failures}"


async def test_a_failure_soon_after_an_outage_belongs_to_it_and_a_later_one_is_the_next(
    server: Server, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    for pause_s in (0.0, QUIET_S - 1, QUIET_S, QUIET_S + 1):
        server.now += pause_s
        outage.noticed("a call", BrokerUnavailable("gone"))
    assert len(told(caplog)) == 2


async def test_what_waiting_does_not_cure_is_raised_at_once(
    outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    async def call() -> None:
        raise BrokerRefused("no login")

    with pytest.raises(BrokerRefused):
        await outage.insist(call, "the call")
    assert caplog.records == []


async def test_a_call_that_is_given_up_does_not_tell_that_the_broker_is_back(
    server: Server, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    call = asyncio.create_task(outage.insist(server.call, "the call", HASTE_S))
    await eventually(lambda: server.calls >= 3)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert told(caplog, logging.INFO) == []


async def test_twelve_requests_that_meet_an_outage_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"r{n}" for n in range(12)]
    async with Rig(batch_size=12) as rig:
        rig.publish(*map(delivery, names))
        await rig.engine.get(12)
        for call in ("open", "settle"):
            rig.session.fail(call, lands=False, times=24)
        for request in list(rig.engine.added):
            rig.engine.give(request.id, 65, finish="stop")
        for name in names:
            await rig.settled(name)
        assert [fault.times for fault in rig.session.faults.values()] == [0, 0]
    assert len(told(caplog)) == 1
