"""What is too large for the broker ends its own request, and nobody else's."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.broker.contract import Append, Done, Opened, PassOn, Release, Retry, Settlement
from headrace.broker.errors import BrokerError, TooLarge
from headrace.broker.events import Delta, Failed, Finished
from headrace.broker.message import Delivery
from headrace.gpu_engine.api import Output
from tests.unit.consumer.fakes import Rig, delivery, eventually, line


def limit_deltas(rig: Rig, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    append, settle = rig.session.append, rig.session.settle

    def check(events: Sequence[object]) -> None:
        if any(isinstance(event, Delta) and len(event.text) > most for event in events):
            raise TooLarge("a message is larger than the topic takes")

    async def bounded(batch: Sequence[Append]) -> list[bool]:
        for item in batch:
            check(item.events)
        return await append(batch)

    async def bounded_settle(one: Delivery, epoch: int, settlement: Settlement) -> bool:
        if isinstance(settlement, Done):
            check(settlement.events)
        return await settle(one, epoch, settlement)

    monkeypatch.setattr(rig.session, "append", bounded)
    monkeypatch.setattr(rig.session, "settle", bounded_settle)


async def test_a_failure_whose_line_the_broker_can_never_take_ends_alone() -> None:
    """Its line holds the text so far."""
    async with Rig() as rig:
        rig.session.most_bytes = 1_000
        rig.publish(delivery("large"))
        large = (await rig.engine.get()).id
        for _ in range(1_000):
            rig.engine.give(large, 65)
        await rig.logged("A" * 1_000, "large")
        rig.session.cancel("large")
        await rig.idle()
        assert not rig.task.done(), rig.task
        assert rig.session.fold("large").ended
        rig.publish(delivery("small"))
        small = (await rig.engine.get(2)).id
        rig.engine.give(small, 66, finish="length")
        await rig.settled("small")


@pytest.mark.parametrize("stream", [True, False])
async def test_events_that_the_broker_can_never_take_fail_their_request_alone(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        limit_deltas(rig, 100, monkeypatch)
        rig.publish(delivery("large", stream=stream), delivery("small", stream=stream))
        large, small = (await rig.engine.get()).id, (await rig.engine.get(2)).id
        rig.engine.give(large, *([65] * 200), finish="length")
        rig.engine.give(small, 66)
        rig.engine.give(small, 66, finish="length")
        await eventually(lambda: rig.session.fold("large").ended or rig.task.done())
        assert not rig.task.done(), rig.task
        assert isinstance(rig.session.fold("large").terminal, Failed)
        settled = await rig.settled("small")
        assert isinstance(settled, Done)
        assert isinstance(settled.terminal, Finished)
        assert rig.session.fold("small").text == "BB"


async def test_a_stream_whose_events_the_broker_can_never_take_fails_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    async with Rig() as rig:
        limit_deltas(rig, 100, monkeypatch)
        rig.publish(delivery("large"), delivery("small"))
        large, small = (await rig.engine.get()).id, (await rig.engine.get(2)).id
        await eventually(lambda: bool(rig.session.starts("large") and rig.session.starts("small")))
        rig.engine.step(
            Output(id=large, token_ids=[65] * 200, text="A" * 200), Output(id=small, token_ids=[66], text="B")
        )
        await eventually(lambda: rig.session.fold("large").ended or rig.task.done())
        assert not rig.task.done(), rig.task
        assert isinstance(rig.session.fold("large").terminal, Failed)
        assert large in rig.engine.aborted
        await rig.logged("B", "small")
        rig.engine.give(small, 66, finish="length")
        await rig.settled("small")
        assert rig.session.fold("small").text == "BB"


def take_nothing_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's client wrote more than we can send: no other queue takes it."""
    settle = rig.session.settle

    async def bounded(one: Delivery, epoch: int, settlement: Settlement) -> bool:
        if isinstance(settlement, PassOn | Retry):
            raise TooLarge("a message is larger than the topic takes")
        return await settle(one, epoch, settlement)

    monkeypatch.setattr(rig.session, "settle", bounded)


@pytest.mark.parametrize("registry_away", [False, True])
async def test_one_that_is_too_large_to_go_elsewhere_or_later_fails_alone(
    registry_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Rig() as rig:
        take_nothing_on(rig, monkeypatch)
        rig.registry.enter("large", "other")
        rig.registry.away = registry_away
        rig.publish(delivery(body=line(model="other")))
        await eventually(lambda: rig.session.fold().ended or rig.task.done())
        assert not rig.task.done(), rig.task
        terminal = rig.session.fold().terminal
        assert isinstance(terminal, Failed)
        assert terminal.code == "request_too_large"
        await rig.idle()
        assert rig.worker.counters.failed == 1


async def test_one_that_cannot_be_read_nor_put_off_stays_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log is not ours to end."""
    async with Rig() as rig:
        take_nothing_on(rig, monkeypatch)

        async def reading(one: Delivery) -> Opened:
            raise BrokerError("an event of an unknown kind")

        monkeypatch.setattr(rig.session, "open", reading)
        rig.publish(delivery())
        await eventually(lambda: "r1" in rig.session.settled or rig.task.done())
        assert not rig.task.done(), rig.task
        assert isinstance(await rig.settled(), Release)
