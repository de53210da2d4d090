"""A node that dies and comes back: publishers and readers go on by themselves, and nothing is missed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Broker, Published
from headrace.broker.embedded.kafka import EmbeddedKafka
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Delta, Event, Finished, Started
from headrace.broker.fold import fold
from headrace.broker.ids import new_request_id
from headrace.broker.kafka.adapter import KafkaBroker
from headrace.broker.kafka.address import parse_address
from headrace.broker.kafka.clients import Clients
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.places import LogPlace, log_key
from headrace.broker.message import Lane, Message, RequestRef
from headrace.broker.names import Names
from tests.support.frozen import frozen
from tests.support.kafka_server import running_kafka

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PATIENCE_S = 60
OPTIONS = {"partitions": "2", "delays": "500ms"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    with running_kafka(tmp_path / "kafka") as made:
        yield made


async def publish(broker: Broker, request_id: str) -> RequestRef:
    """As a client does: again and again while the broker is away. The id makes copies harmless."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                (result,) = await broker.publish([Message(b"body", request_id, Lane.BATCH)])
            except BrokerUnavailable:
                await asyncio.sleep(0.2)
                continue
            assert isinstance(result, Published)
            return result.ref


async def answers(broker: Broker) -> None:
    """Its probe may fail for a moment more: the client waits before it connects again."""
    while True:
        try:
            return await broker.ping()
        except BrokerUnavailable:
            await asyncio.sleep(0.05)


async def test_publishing_watching_and_results_go_on_behind_a_crash(server: EmbeddedKafka) -> None:
    broker = await connect(server.url, options=OPTIONS)
    names = Names()
    hand = Connection.make(parse_address(server.url, OPTIONS), names)
    ref = await publish(broker, new_request_id(Lane.BATCH, 1))

    async def write(*events: Event) -> None:
        topic, key = names.events(Lane.BATCH), log_key(ref)
        await hand.publisher.send([encode_event_record(topic, 1, key, event) for event in events])

    async def shown() -> str:
        return fold([entry.event async for entry in broker.watch(ref)]).text

    await write(Started(0, "me", "here", 7, b"hash", "model"), Delta(0, 0, (1,), "a"))
    reader = asyncio.create_task(shown())
    follower = asyncio.ensure_future(anext(broker.results()))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(server.kill)
    late = asyncio.create_task(publish(broker, new_request_id(Lane.BATCH, 0)))
    later = asyncio.create_task(shown())  # a reader that comes while nobody is there
    with pytest.raises((BrokerUnavailable, TimeoutError)):
        await asyncio.wait_for(broker.ping(), 1)
    await asyncio.sleep(1)
    await asyncio.to_thread(server.restart)

    async with asyncio.timeout(PATIENCE_S):
        assert await broker.known(await late)
        await answers(broker)
        await write(Delta(0, 1, (2,), "b"), Finished(0, "stop"))
        assert [await reader, await later] == ["ab", "ab"]
        await broker.pause(Lane.BATCH)
        stats = await broker.stats()
        assert (stats.lanes[Lane.BATCH].waiting, stats.lanes[Lane.BATCH].paused) == (2, True)
    follower.cancel()
    await hand.close()
    await broker.close()


async def test_a_publisher_goes_on_behind_a_freeze_that_outlasts_its_patience(
    server: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library by itself would never send again: the record that it gave up had been on its way."""
    make = Clients.producer_options
    impatient = {"request_timeout_ms": 500, "delivery_timeout_ms": 1_500}
    monkeypatch.setattr(Clients, "producer_options", lambda clients: make(clients, **impatient))
    broker = await connect(server.url, options=OPTIONS)
    await publish(broker, new_request_id(Lane.BATCH, 0))
    with frozen(server.pid()), pytest.raises(BrokerUnavailable):
        await broker.publish([Message(b"body", new_request_id(Lane.BATCH, 1), Lane.BATCH)])
    await publish(broker, new_request_id(Lane.BATCH, 2))
    await broker.close()


async def test_what_cannot_be_reached_is_one_sentence(server: EmbeddedKafka) -> None:
    address = server.url
    await asyncio.to_thread(server.stop)
    with pytest.raises(BrokerUnavailable, match="is it running"):
        await connect(address, options=OPTIONS)


async def test_a_connection_ends_while_what_it_asked_for_is_not_to_be_had(server: EmbeddedKafka) -> None:
    """A process that is told to stop must not wait for its cluster to come back."""
    broker = await connect(server.url, options=OPTIONS)
    assert isinstance(broker, KafkaBroker)
    await publish(broker, new_request_id(Lane.BATCH, 0))
    place = LogPlace(Lane.BATCH, "", 0)
    assert not await broker._figures.is_finished(place, 0)
    await asyncio.sleep(1.5)  # longer than what it heard counts
    with frozen(server.pid()):
        asking = asyncio.create_task(broker._figures.is_finished(place, 0))
        await asyncio.sleep(0.5)
        async with asyncio.timeout(15):
            await broker.close()
        assert isinstance(*await asyncio.gather(asking, return_exceptions=True), BrokerUnavailable)
