"""The server is killed at any instant and started again: nothing acknowledged is lost, everybody goes on."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Broker, ConsumerSession, Done, OpenOutcome, Published
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Finished, Logged
from headrace.broker.fold import fold
from headrace.broker.message import Lane, Message, RequestRef
from tests.integration.redis.steps import BODY, LANES, LONG_MS, lines, publish, run, shown, take
from tests.support.frozen import frozen

pytestmark = pytest.mark.slow


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path) as server:
        yield server


@pytest.fixture
async def broker(mortal: EmbeddedValkey) -> AsyncIterator[Broker]:
    made = await connect(mortal.url)
    yield made
    await made.close()


async def kill(server: EmbeddedValkey) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.to_thread(server.wait)


async def restart(server: EmbeddedValkey) -> None:
    await asyncio.to_thread(server.start)


async def test_queue_leases_log_and_epochs_survive_and_the_holder_goes_on(
    mortal: EmbeddedValkey, broker: Broker
) -> None:
    (ref, _) = await publish(broker, "r", "s")
    held = await run(await broker.consume(LANES, LONG_MS))
    await held.start()
    await held.say(0, "one ")
    await kill(mortal)
    with pytest.raises(BrokerUnavailable):
        await held.say(1, "two")
    with pytest.raises(BrokerUnavailable):
        await broker.ping()
    await restart(mortal)
    await broker.ping()
    assert await held.session.heartbeat() == []
    again = await run(held.session, held.delivery)  # the fate was unknown: fence anew and read again
    assert again.epoch > held.epoch
    assert again.state.text == "one "
    assert await again.start()
    assert await again.say(1, "two")
    assert await again.finish()
    assert (await shown(broker, ref)).text == "one two"
    assert (await take(held.session)).ref == RequestRef("s")


async def test_watchers_results_and_cancellations_ride_out_a_restart_and_miss_nothing(
    mortal: EmbeddedValkey, broker: Broker
) -> None:
    (ref,) = await publish(broker, "r")
    held = await run(await broker.consume(LANES, LONG_MS))
    await held.start()
    seen: list[Logged] = []

    async def watch() -> None:
        seen.extend([logged async for logged in broker.watch(ref)])

    async def cancelled() -> RequestRef:
        return await anext(aiter(held.session.cancellations()))

    watching = asyncio.create_task(watch())
    reading = asyncio.create_task(_first_line(broker))
    listening = asyncio.create_task(cancelled())
    await held.say(0, "one ")
    await asyncio.sleep(0.05)
    await kill(mortal)
    await asyncio.sleep(0.1)
    await restart(mortal)
    again = await run(held.session, held.delivery)
    await again.start()
    await again.say(1, "two")
    await broker.cancel(RequestRef("other"))
    await again.finish()
    async with asyncio.timeout(15):
        await watching
        assert await reading == b"line"
        assert await listening == RequestRef("other")
    assert fold(logged.event for logged in seen).text == "one two"
    assert len({logged.cursor for logged in seen}) == len(seen)


async def _first_line(broker: Broker) -> bytes:
    return (await lines(broker, 1))[0]


async def test_a_watch_that_begins_while_the_server_is_down_waits_for_it(
    mortal: EmbeddedValkey, broker: Broker
) -> None:
    (ref,) = await publish(broker, "r")
    held = await run(await broker.consume(LANES, LONG_MS))
    await held.finish()
    await kill(mortal)
    watching = asyncio.create_task(shown(broker, ref))
    await asyncio.sleep(0.1)
    await restart(mortal)
    assert (await watching).ended


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(
    mortal: EmbeddedValkey, broker: Broker
) -> None:
    """Publishers send again until a publish is acknowledged, under the same id; consumers fence anew."""
    rng = random.Random(7)
    ids = [f"r{number}" for number in range(120)]

    async def publisher(mine: list[str]) -> None:
        for request_id in mine:
            await _publish_until_acknowledged(broker, request_id)

    async def killer() -> None:
        for _ in range(3):
            await asyncio.sleep(rng.uniform(0.1, 0.4))
            await kill(mortal)
            await restart(mortal)

    work = [publisher(ids[:60]), publisher(ids[60:]), killer()]
    consuming = asyncio.create_task(_consume_for_ever(broker))
    async with asyncio.timeout(40):
        await asyncio.gather(*work)
        found = sorted(await lines(broker, len(ids)))
    await asyncio.sleep(0.6)  # what was acknowledged twice would come again now
    consuming.cancel()
    assert found == sorted(request_id.encode() for request_id in ids)
    stats = await broker.stats()
    assert (stats.leases, stats.lanes[Lane.BATCH].waiting, stats.dead_letters) == ([], 0, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await lines(broker, len(ids) + 1)


async def test_a_session_closes_promptly_though_the_server_is_frozen(
    mortal: EmbeddedValkey, broker: Broker
) -> None:
    session = await broker.consume(LANES, LONG_MS)
    with frozen(mortal.pid):
        async with asyncio.timeout(3):
            await session.close()


async def _publish_until_acknowledged(broker: Broker, request_id: str) -> None:
    while True:
        try:
            (result,) = await broker.publish([Message(BODY, request_id, Lane.BATCH)])
            assert isinstance(result, Published)
            return
        except BrokerUnavailable:
            await asyncio.sleep(0.02)


async def _consume_for_ever(broker: Broker) -> None:
    """A consumer that dies with the server: what it was doing comes back when the lease lapses."""
    while True:
        try:
            await _consume(await broker.consume(LANES, 400))
        except BrokerUnavailable:
            await asyncio.sleep(0.02)


async def _consume(session: ConsumerSession) -> None:
    while True:
        for delivery in await session.pull(8, 50):
            opened = await session.open(delivery)
            settlement, epoch = Done(), opened.epoch
            if opened.outcome is OpenOutcome.RUN:
                settlement = Done(Finished(epoch, "stop"), delivery.ref.request_id.encode())
            await session.settle(delivery, epoch, settlement)
