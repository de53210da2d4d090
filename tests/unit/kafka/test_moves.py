"""A request on its way to another place, overlapped by what else is done with it: it arrives once."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import OpenOutcome, PassOn, Retry
from headrace.broker.errors import BrokerUnavailable, TooLarge
from headrace.broker.events import Moved
from headrace.broker.kafka import commits, settle
from headrace.broker.kafka.places import log_key
from headrace.broker.message import Delivery
from headrace.broker.wire import decode_event
from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import begin, done, finish_all, settled, started, until


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who settles hears soon that nobody answers."""
    monkeypatch.setattr(settle, "_PATIENCE_S", 0.05)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight records beyond the base, and no more are taken."""
    monkeypatch.setattr(commits, "WINDOW", 8)


async def move_late(rig: Rig, delivery: Delivery) -> int:
    """Its log says that it moved; who settled so heard nothing. Returns its epoch."""
    opened = await rig.session.open(delivery)
    rig.stalled = True
    with pytest.raises(BrokerUnavailable):
        await rig.session.settle(delivery, opened.epoch, PassOn("large"))
    rig.stalled = False
    await settled(rig)
    return opened.epoch


async def test_a_move_whose_answer_was_lost_is_completed_when_it_is_opened_again() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        opened = await rig.session.open(delivery)
        rig.publisher.lost = 1
        with pytest.raises(BrokerUnavailable):
            await rig.session.settle(delivery, opened.epoch, PassOn("large"))
        assert rig.readers(delivery).moved is not None
        await finish_all(rig, [delivery])
        assert [record.topic for record in rig.publisher.sent] == ["x.requests.large.standard"]


async def test_what_comes_back_before_its_departure_is_completed_is_run() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        opened = await rig.session.open(delivery)
        passing = asyncio.create_task(rig.session.settle(delivery, opened.epoch, PassOn("large")))
        await until(lambda: bool(rig.publisher.sent))
        rig.stalled = True
        (gone,) = rig.publisher.sent
        gone.headers[:] = [h if h[0] != "headrace-moves" else (h[0], b"2") for h in gone.headers]
        (back,) = rig.take(rig.copy(gone, 1))
        opening = asyncio.create_task(rig.session.open(back))
        await asyncio.sleep(0.03)
        rig.stalled = False
        assert (await opening).outcome is OpenOutcome.RUN
        assert await passing


@pytest.mark.usefixtures("narrow")
async def test_one_whose_end_may_stand_in_its_log_is_not_handed_on() -> None:
    async with Rig() as rig:
        delivery, *_ = rig.take(*(request(n, f"{n}") for n in range(8)))
        epoch = await begin(rig, delivery)
        rig.publisher.lost = 1
        with pytest.raises(BrokerUnavailable):
            await rig.session.settle(delivery, epoch, done(epoch))
        assert rig.readers(delivery).ended
        if (blocking := rig.tenure.blocking()) is not None:
            await rig.settlements.hand_on(rig.tenure, blocking)
            (delivery,) = rig.take(rig.copy(rig.publisher.sent[0], 8))
        await finish_all(rig, [delivery])
        assert rig.lines() == [b"line"]


@pytest.mark.usefixtures("impatient", "narrow")
async def test_one_that_has_moved_is_not_handed_on() -> None:
    async with Rig() as rig:
        delivery, *_ = rig.take(*(request(n, f"{n}") for n in range(8)))
        await move_late(rig, delivery)
        if (blocking := rig.tenure.blocking()) is not None:
            await rig.settlements.hand_on(rig.tenure, blocking)
            (delivery,) = rig.take(rig.copy(rig.publisher.sent[0], 8))
        await finish_all(rig, [delivery])
        assert "x.requests.large.standard" in [record.topic for record in rig.publisher.sent]


@pytest.mark.usefixtures("impatient")
async def test_what_was_said_to_have_moved_moves_whatever_is_settled_then() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await move_late(rig, delivery)
        assert await rig.session.settle(delivery, epoch, Retry(1, "the pool cannot be reached"))
        for record in rig.delayed():
            await finish_all(rig, rig.take(rig.copy(record, 1)))
        assert [record.topic for record in rig.publisher.sent] == ["x.requests.large.standard"]


@pytest.mark.usefixtures("impatient")
async def test_a_move_that_is_repeated_stands_in_the_log_once() -> None:
    """Readers follow the first one, come back with the request, and would follow the second one for ever."""
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await move_late(rig, delivery)
        assert await rig.session.settle(delivery, epoch, PassOn("large"))
        events = [decode_event(record.value) for record in rig.publisher.events]
        assert sum(isinstance(event, Moved) for event in events) == 1
        assert len(rig.publisher.sent) == 1


@pytest.mark.usefixtures("impatient")
async def test_the_record_of_a_first_move_is_a_twin_once_its_request_began_here_again() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await move_late(rig, delivery)
        key = log_key(delivery.ref)
        rig.tenure.logs.append(key, started(delivery, epoch), 99)  # its copy came back, and began
        assert (await rig.session.open(delivery)).outcome is OpenOutcome.TWIN


async def hand_on_late(rig: Rig, delivery: Delivery, writes: int) -> None:
    """Its copy, the last of its writes, is published; its completion takes longer than it is waited for."""
    answers = [asyncio.Event() for _ in range(writes)]
    rig.publisher.answers = list(answers)
    handing = asyncio.create_task(rig.settlements.hand_on(rig.tenure, delivery))
    for answer in answers[:-1]:
        answer.set()
    await until(lambda: bool(rig.publisher.sent))
    rig.stalled = True
    answers[-1].set()
    with pytest.raises(BrokerUnavailable):
        await handing


@pytest.mark.usefixtures("impatient", "narrow")
async def test_what_was_handed_on_is_not_taken_again_once_it_is_completed() -> None:
    async with Rig() as rig:
        delivery, *_ = rig.take(*(request(n, f"{n}") for n in range(8)))
        await begin(rig, delivery)
        assert rig.tenure.blocking() is delivery
        await hand_on_late(rig, delivery, writes=2)
        rig.stalled = False
        await settled(rig)
        again = [rig.tenure.take()] if rig.tenure.oldest_ms() is not None else []
        (copy,) = rig.take(rig.copy(rig.publisher.sent[0], 8))
        outcomes = [(await rig.session.open(one)).outcome for one in [*again, copy]]
        # Whoever runs it must come again when its owner dies.
        running = [
            one for one, outcome in zip([*again, copy], outcomes, strict=True) if outcome is OpenOutcome.RUN
        ]
        finished = rig.tenure.progress.finished
        assert [finished(one.handle.offset) for one in running] == [False]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("impatient", "narrow")
async def test_what_was_handed_on_and_taken_again_before_it_is_completed() -> None:
    async with Rig() as rig:
        delivery, *_ = rig.take(*(request(n, f"{n}") for n in range(8)))
        await hand_on_late(rig, delivery, writes=1)
        again = rig.tenure.take()
        opening = asyncio.create_task(rig.session.open(again))
        await asyncio.sleep(0.03)
        rig.stalled = False
        await asyncio.gather(opening, return_exceptions=True)
        await settled(rig)
        (copy,) = rig.take(rig.copy(rig.publisher.sent[0], 8))
        assert (await rig.session.open(copy)).outcome is OpenOutcome.RUN


@pytest.mark.usefixtures("impatient")
async def test_a_move_that_was_not_confirmed_is_not_completed_by_a_zombie() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        opened = await rig.session.open(delivery)
        rig.stalled = True  # it cannot hear that its partition is somebody else's
        with pytest.raises(BrokerUnavailable):
            await rig.session.settle(delivery, opened.epoch, PassOn("large"))
        with pytest.raises(BrokerUnavailable):
            await rig.session.open(delivery)
        assert rig.publisher.sent == []


async def test_what_is_too_large_to_be_moved_is_not_said_to_have_moved() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a", b"x" * (10 << 20)))
        opened = await rig.session.open(delivery)
        with pytest.raises(TooLarge):
            await rig.session.settle(delivery, opened.epoch, PassOn("large"))
        assert rig.readers(delivery).moved is None
        epoch = (await rig.session.open(delivery)).epoch
        assert await rig.session.settle(delivery, epoch, done(epoch))
