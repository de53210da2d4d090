"""What the log of a request tells its next owner, whatever overlapped with the writing of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.contract import Append, OpenOutcome, PassOn
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Delta, Event, Handed
from headrace.broker.fold import Fold
from headrace.broker.kafka import commits
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.statements import decode_fold, encode_fold
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.names import Names
from headrace.broker.wire import decode_event
from tests.unit.kafka.records import TOPICS, request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import begin, done, finish_all, go_on, started, until


async def test_who_was_cancelled_while_it_opened_again_does_not_end_below_its_own_fence() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await begin(rig, delivery)
        before = len(rig.publisher.events)
        rig.publisher.answers = [asyncio.Event()]  # that of the fence
        opening = asyncio.create_task(rig.session.open(delivery))
        await until(lambda: len(rig.publisher.events) > before)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        ended = False
        try:
            ended = await rig.session.settle(delivery, epoch, done(epoch))
        except BrokerUnavailable:
            await finish_all(rig, [delivery])
        assert (rig.readers(delivery).ended, rig.lines()) == (True, [b"line"]), ended


async def test_a_log_is_not_stated_while_it_is_in_doubt() -> None:
    async with Rig() as rig:
        delivery, other = rig.take(request(0, "a"), request(1, "b"))
        epoch = await begin(rig, delivery)
        rig.tenure.logs.log(log_key(delivery.ref)).stated_ms = 0  # long ago
        rig.publisher.lost = 1
        with pytest.raises(BrokerUnavailable):
            await rig.session.append([Append(delivery, epoch, [Delta(epoch, 0, (1, 2, 3), "abc")])])
        await rig.appender.repeat_fences([rig.tenure])
        await rig.appender.state_anew([rig.tenure])
        await go_on(rig, other)
        assert rig.readers(delivery).text == "abc"
        assert rig.successor(delivery).text == "abc"
        state = (await rig.session.open(delivery)).state
        assert state is not None
        assert state.text == "abc"


async def test_a_log_is_not_stated_while_it_is_read_again() -> None:
    async with Rig() as rig:
        delivery, other = rig.take(request(0, "a"), request(1, "b"))
        epoch = await begin(rig, delivery)
        rig.tenure.logs.log(log_key(delivery.ref)).stated_ms = 0
        rig.publisher.lost = 1
        with pytest.raises(BrokerUnavailable):
            await rig.session.append([Append(delivery, epoch, [Delta(epoch, 0, (1, 2, 3), "abc")])])
        reading, go, answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        read = rig.read

        async def slowly(stretches: Any) -> Any:
            found = await read(stretches)
            reading.set()
            await go.wait()
            return found

        rig.read = slowly  # type: ignore[method-assign]
        opening = asyncio.create_task(rig.session.open(delivery))
        await reading.wait()
        await rig.appender.repeat_fences([rig.tenure])
        rig.publisher.answers = [answer]
        stating = asyncio.create_task(rig.appender.state_anew([rig.tenure]))
        for _ in range(5):
            await asyncio.sleep(0)
        rig.publisher.answers = []
        go.set()
        assert (await opening).state.text == "abc"  # type: ignore[union-attr]
        answer.set()
        await stating
        await go_on(rig, other)
        assert rig.successor(delivery).text == "abc"


async def test_a_successor_reads_what_may_have_been_written_first() -> None:
    async with Rig() as rig:
        delivery, other = rig.take(request(0, "a"), request(1, "b"))
        opened = await rig.session.open(delivery)
        events: list[Event] = [started(delivery, opened.epoch), Delta(opened.epoch, 0, (1,), "a")]
        rig.publisher.lost = 1
        with pytest.raises(BrokerUnavailable):
            await rig.session.append([Append(delivery, opened.epoch, events)])
        rig.tenure.fenced_ms = 0
        await rig.appender.repeat_fences([rig.tenure])
        await go_on(rig, other)
        assert rig.readers(delivery).text == "a"
        assert rig.successor(delivery).text == "a"
        state = (await rig.session.open(delivery)).state
        assert state is not None
        assert state.text == "a"


async def test_an_append_of_several_logs_waits_for_each_that_is_stated() -> None:
    async with Rig() as rig:
        both = rig.take(request(0, "a"), request(1, "b"))
        epochs = [await begin(rig, one) for one in both]
        for one in both:
            rig.tenure.logs.log(log_key(one.ref)).stated_ms = 0
        gates = [asyncio.Event(), asyncio.Event()]
        rig.publisher.turns = list(gates)
        stating = asyncio.create_task(rig.appender.state_anew([rig.tenure]))
        await asyncio.sleep(0)
        batch = [Append(one, e, [Delta(e, 0, (1,), "x")]) for one, e in zip(both, epochs, strict=True)]
        appending = asyncio.create_task(rig.session.append(batch))
        await asyncio.sleep(0)
        gates[0].set()  # the first one is stated; the second one is slow
        for _ in range(20):
            await asyncio.sleep(0)
        gates[1].set()
        await stating
        await appending
        rig.tenure.fenced_ms = 0
        for one in both:
            assert rig.readers(one).text == "x"
            read = rig.tenure.logs.log(log_key(one.ref)).since
            assert read is not None
            stated = [
                decode_event(r.value)
                for r in rig.publisher.events[read:]
                if r.key == log_key(one.ref).encode()
            ]
            assert any(isinstance(event, Delta) for event in stated), "the delta stands before the statement"


def test_a_statement_keeps_who_put_the_request_off() -> None:
    fold = Fold(epoch=5)
    fold.read(Handed(5, "retry 7: busy"))
    assert fold.put_off is not None
    read = decode_fold(encode_fold(fold), 5)
    assert read is not None
    assert read.put_off == fold.put_off


async def test_a_twin_of_a_request_that_ended_lately_is_known_after_a_take_over() -> None:
    async with Rig() as rig:
        delivery, _, other = rig.take(request(0, "a"), request(1, "a"), request(2, "b"))
        epoch = await begin(rig, delivery)
        assert await rig.session.settle(delivery, epoch, done(epoch))
        await rig.appender.repeat_fences([rig.tenure])
        await go_on(rig, other)  # one request of 520 tokens
        committed = rig.transactions.held[rig.tenure.partition]
        logs = PartitionLogs(committed.restore)
        for record in rig.publisher.events[committed.restore :]:
            logs.read(record)
        logs.fence(committed.epoch + 1, len(rig.publisher.events))
        successor = Tenure(TOPICS, 0, Names("x"), committed.epoch + 1, committed, logs, 0, "member")
        successor.tidy()
        successor.fetched([request(n, "a") for n in (1,)])
        assert successor.judge(successor.take()) is OpenOutcome.ENDED


async def test_who_opens_again_reads_what_is_still_being_written(monkeypatch: Any) -> None:
    """The answer of an append comes late, since another record of its call is slow; then it is handed on."""
    monkeypatch.setattr(commits, "WINDOW", 8)
    async with Rig() as rig:
        delivery, *_ = rig.take(*(request(n, f"{n}") for n in range(8)))
        epoch = await begin(rig, delivery)
        answer, before = asyncio.Event(), len(rig.publisher.events)
        rig.publisher.answers = [answer]
        delta = Append(delivery, epoch, [Delta(epoch, 0, (1, 2, 3), "abc")])
        appending = asyncio.create_task(rig.session.append([delta]))
        await until(lambda: len(rig.publisher.events) > before)
        await rig.settlements.hand_on(rig.tenure, delivery)
        (copy,) = rig.take(rig.copy(rig.publisher.sent[0], 8))
        state = (await rig.session.open(copy)).state
        answer.set()
        await asyncio.gather(appending, return_exceptions=True)
        assert rig.readers(delivery).text == "abc"
        assert state is not None
        assert state.text == "abc"


async def test_a_restore_begins_no_later_than_what_is_still_being_written() -> None:
    """Its call waits for the leader of a reply topic; the events stand in the log and are shown."""
    async with Rig() as rig:
        delivery, *others = rig.take(*(request(n, f"{n}") for n in range(5)))
        epoch = (await rig.session.open(delivery)).epoch
        answer, before = asyncio.Event(), len(rig.publisher.events)
        rig.publisher.answers = [answer]
        events: list[Event] = [started(delivery, epoch), Delta(epoch, 0, (1,), "a")]
        appending = asyncio.create_task(rig.session.append([Append(delivery, epoch, events)]))
        await until(lambda: len(rig.publisher.events) > before)
        for other in others:
            rig.tenure.fenced_ms = 0
            await rig.appender.repeat_fences([rig.tenure])
            await go_on(rig, other)
        answer.set()
        await appending
        assert rig.readers(delivery).text == "a"
        assert rig.successor(delivery).text == "a"


async def test_a_twin_of_a_request_that_went_away_lately_is_known_after_a_take_over() -> None:
    async with Rig() as rig:
        delivery, _, *others = rig.take(*(request(n, name) for n, name in enumerate("aabcde")))
        opened = await rig.session.open(delivery)
        assert await rig.session.settle(delivery, opened.epoch, PassOn("large"))
        for other in others:
            rig.tenure.fenced_ms = 0
            await rig.appender.repeat_fences([rig.tenure])
            await go_on(rig, other)
        committed = rig.transactions.held[rig.tenure.partition]
        logs = PartitionLogs(committed.restore)
        for record in rig.publisher.events[committed.restore :]:
            logs.read(record)
        logs.fence(committed.epoch + 1, len(rig.publisher.events))
        successor = Tenure(TOPICS, 0, Names("x"), committed.epoch + 1, committed, logs, 0, "member")
        successor.tidy()
        back = rig.copy(rig.publisher.sent[0], 7)
        successor.fetched([request(1, "a"), request(6, "a", b"another body"), back])
        outcomes = [successor.judge(successor.take()) for _ in range(3)]
        assert outcomes == [OpenOutcome.TWIN, OpenOutcome.CONFLICT, OpenOutcome.RUN]
