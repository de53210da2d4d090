"""A producer that gave a record up is replaced, and whoever else waits for it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.clients import Acknowledged, Clients
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.failures import translated
from headrace.broker.kafka.publisher import Publisher
from tests.unit.kafka.rig import Rig


class Answered:
    timestamp = 1_000


class Producer:
    """What becomes of its records is set by the test; the end of the producer is the end of what waits."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Answered]] = []
        self.closed = False

    def send(self, topic: str, **_: object) -> asyncio.Future[Answered]:
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


class Producers:
    """Stands for `Clients`."""

    servers = "kafka://here"

    def __init__(self) -> None:
        self.made: list[Producer] = []

    async def producer(self) -> Producer:
        self.made.append(Producer())
        return self.made[-1]

    async def run(self, call: Callable[..., Any], *args: object) -> Any:
        return call(*args)

    async def acknowledged(self, futures: Sequence[asyncio.Future[Acknowledged]]) -> list[Acknowledged]:
        return [await future for future in futures]

    async def close_producer(self, producer: Producer, patience_s: float) -> None:
        producer.closed = True
        for answer in producer.answers:
            if not answer.done():
                answer.set_exception(BrokerRefused("Producer is closed forcefully."))


@pytest.fixture
def producers() -> Producers:
    return Producers()


def publisher(producers: Producers, patience_s: float = 30.0) -> Publisher:
    return Publisher(cast(Clients, producers), BrokerClock(), patience_s)


async def sending(publisher: Publisher) -> asyncio.Task[list[Acknowledged]]:
    task = asyncio.create_task(publisher.send([Record("topic", b"value")]))
    for _ in range(5):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("error", [BrokerUnavailable("given up"), BrokerRefused("out of order")])
async def test_behind_a_record_that_was_given_up_another_producer_sends(
    producers: Producers, error: BrokerError
) -> None:
    sender = publisher(producers)
    failing = await sending(sender)
    producers.made[0].answers[0].set_exception(error)
    with pytest.raises(type(error), match=str(error)):
        await failing
    later = await sending(sender)
    producers.made[1].answers[0].set_result(Answered())
    assert len(await later) == 1
    assert [made.closed for made in producers.made] == [True, False]


async def test_whoever_else_waits_for_that_producer_hears_that_it_may_try_again(producers: Producers) -> None:
    sender = publisher(producers)
    failing, neighbour = await sending(sender), await sending(sender)
    producers.made[0].answers[0].set_exception(BrokerUnavailable("given up"))
    with pytest.raises(BrokerUnavailable, match="given up"):
        await failing
    with pytest.raises(BrokerUnavailable, match="did not acknowledge"):
        await neighbour
    assert len(producers.made) == 1


async def test_a_producer_that_says_nothing_is_not_waited_for_for_ever(producers: Producers) -> None:
    sender = publisher(producers, patience_s=0.01)
    with pytest.raises(BrokerUnavailable, match="did not acknowledge a write in time"):
        await sender.send([Record("topic", b"value")])
    assert producers.made[0].closed


async def test_a_topic_that_the_client_has_lost_sight_of_passes(
    producers: Producers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python asks its metadata twice, and calls it a ValueError where the second answer is another."""

    def lose(self: Producer, topic: str, **_: object) -> None:
        raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")

    async def translating(call: Callable[..., Any], *args: object) -> Any:
        with translated(producers.servers):
            return call(*args)

    monkeypatch.setattr(Producer, "send", lose)
    monkeypatch.setattr(producers, "run", translating)
    with pytest.raises(BrokerUnavailable):
        await publisher(producers).send([Record("topic", b"value")])


async def test_an_append_that_fails_in_an_unknown_way_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:

        async def fail(records: Sequence[Record]) -> list[Any]:
            raise RuntimeError("a mistake of ours, or of the client")

        monkeypatch.setattr(rig.publisher, "send", fail)
        async with asyncio.timeout(1):
            with pytest.raises(RuntimeError):
                await rig.appender.append([], [Record("topic", b"value")])
