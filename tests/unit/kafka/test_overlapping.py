"""Settlements that overlap, are cancelled, or fail in their middle: one end, one line, nothing is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import kafka.errors as ke
import pytest

from headrace.broker.contract import OpenOutcome, Release, Retry
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.kafka import settle
from headrace.broker.kafka.transactions import Outcome, Untakeable
from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import begin, cancel_after, done, finish_all, settled, until


async def test_a_retry_whose_caller_gave_up_is_run_again_when_it_comes_back() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await begin(rig, delivery)
        rig.stalled = True
        await cancel_after(10, rig.session.settle(delivery, epoch, Retry(1, "busy")))
        rig.stalled = False
        await settled(rig)
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        assert (await rig.session.open(copy)).outcome is OpenOutcome.RUN


async def test_a_retry_that_took_too_long_is_run_again_when_it_comes_back(monkeypatch: Any) -> None:
    monkeypatch.setattr(settle, "_PATIENCE_S", 0.05)
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await begin(rig, delivery)
        rig.stalled = True
        with pytest.raises(BrokerUnavailable):
            await rig.session.settle(delivery, epoch, Retry(1, "busy"))
        monkeypatch.setattr(settle, "_PATIENCE_S", 5)
        reopening = asyncio.create_task(rig.session.open(delivery))
        await asyncio.sleep(0.02)
        rig.stalled = False
        assert (await reopening).outcome is OpenOutcome.LOST
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        await finish_all(rig, [copy])
        assert (rig.readers(copy).ended, rig.lines()) == (True, [b"line"])


async def test_what_is_being_put_off_is_not_run_meanwhile() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        rig.stalled = True
        await cancel_after(10, rig.session.settle(delivery, 0, Retry(1, "unread")))
        running = asyncio.create_task(finish_all(rig, [delivery]))
        await asyncio.sleep(0.03)
        rig.stalled = False
        await running
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        await finish_all(rig, [copy])
        assert (rig.readers(copy).ended, rig.lines()) == (True, [b"line"])


async def test_two_settlements_of_one_delivery_are_not_mixed() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await begin(rig, delivery)
        rig.stalled = True
        await cancel_after(10, rig.session.settle(delivery, epoch, Retry(1, "busy")))
        ending = asyncio.create_task(rig.session.settle(delivery, epoch, done(epoch)))
        await asyncio.sleep(0.03)
        rig.stalled = False
        await ending
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        await finish_all(rig, [copy])
        assert (rig.readers(copy).ended, rig.lines()) == (True, [b"line"])


async def test_what_is_being_put_off_and_is_given_back_is_not_lost() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        rig.stalled = True
        await cancel_after(10, rig.session.settle(delivery, 0, Retry(1, "unread")))
        release = asyncio.create_task(rig.session.settle(delivery, 0, Release()))
        await asyncio.sleep(0.03)
        again = rig.tenure.take() if rig.tenure.returned else None
        opened = None if again is None else (await rig.session.open(again)).outcome
        rig.stalled = False
        await release
        await settled(rig)
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        assert (await rig.session.open(copy)).outcome is OpenOutcome.RUN, opened


async def test_what_cannot_be_understood_is_buried_though_the_pull_is_cancelled() -> None:
    async with Rig() as rig:
        rig.tenure.fetched([request(0, "a", deadline=b"soon")])
        found = [(rig.tenure, bad) for bad in rig.tenure.take_bad()]
        assert found
        burying = asyncio.create_task(rig.burials.bury(found))
        await asyncio.sleep(0)
        burying.cancel()
        await asyncio.gather(burying, return_exceptions=True)
        await settled(rig)
        assert rig.tenure.progress.finished(0)


async def test_a_higher_epoch_meanwhile_does_not_make_a_transaction_of_unknown_fate_a_failed_one() -> None:
    async with Rig() as rig:
        delivery, _ = rig.take(request(0, "a"), request(1, "b"))
        epoch = await begin(rig, delivery)
        rig.transactions.outcomes = [Outcome.UNKNOWN]
        commit = rig.transactions.commit

        def slowly(*args: Any) -> Outcome:
            rig.tenure.top_epoch += 1  # a neighbour is opened again
            return commit(*args)

        rig.transactions.commit = slowly  # type: ignore[method-assign, assignment]
        assert await rig.session.settle(delivery, epoch, done(epoch))
        assert rig.lines() == [b"line"]


async def test_one_that_has_ended_is_not_put_off(monkeypatch: Any) -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a", reply_to=b"x.reply.me"))
        epoch = await begin(rig, delivery)

        async def away(topic: str) -> None:
            raise BrokerUnavailable("no topic can be made now")

        reply, rig.reply_to = rig.reply_to, away  # type: ignore[method-assign]
        with pytest.raises(BrokerUnavailable):
            await rig.session.settle(delivery, epoch, done(epoch))
        rig.reply_to = reply  # type: ignore[method-assign]
        await rig.session.settle(delivery, epoch, Retry(1, "busy"))
        for record in rig.delayed():
            await finish_all(rig, rig.take(rig.copy(record, 1)))
        assert [r.value for r in rig.transactions.emitted if r.topic == "x.reply.me"] == [b"line"]


async def test_what_cannot_be_buried_whole_is_buried_though_that_took_long(monkeypatch: Any) -> None:
    """Else nobody would ever finish its record, and the partition would stop a window further on."""
    monkeypatch.setattr(settle, "_PATIENCE_S", 0.05)
    async with Rig() as rig:
        rig.tenure.fetched([request(0, "a", b"large", deadline=b"soon")])
        found = [(rig.tenure, bad) for bad in rig.tenure.take_bad()]
        commit = rig.transactions.commit

        def refuse(records: Any, offsets: Any, membership: Any) -> Outcome:
            for record in records:
                if record.value == b"large":
                    raise Untakeable(record, ke.MessageSizeTooLargeError())
            return commit(records, offsets, membership)

        rig.transactions.commit = refuse  # type: ignore[method-assign]
        rig.stalled = True
        with pytest.raises(BrokerUnavailable):
            await rig.burials.bury(found)
        rig.stalled = False
        await until(lambda: rig.tenure.progress.finished(0))
        assert [record.topic for record in rig.transactions.emitted] == ["x.dlq"]


async def test_a_retry_that_comes_back_before_its_own_fate_is_known_is_run() -> None:
    """Its transaction has landed, its answer was lost with a coordinator, and somebody forwards the copy."""
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        epoch = await begin(rig, delivery)
        rig.transactions.outcomes = [Outcome.UNKNOWN]
        rig.known.clear()
        settling = asyncio.create_task(rig.session.settle(delivery, epoch, Retry(1, "busy")))
        await until(lambda: bool(rig.delayed()))
        (copy,) = rig.take(rig.copy(rig.delayed()[0], 1))
        finishing = asyncio.create_task(finish_all(rig, [copy]))
        await asyncio.sleep(0.03)
        rig.known.set()
        assert await settling
        await finishing
        assert (rig.readers(copy).ended, rig.lines()) == (True, [b"line"])


async def test_what_was_settled_a_moment_ago_is_known_before_its_caller_hears_of_it() -> None:
    """It heard in the next turn of the loop; who asked in this one emitted a second line, or was a twin."""
    async with Rig() as rig:
        ended, delayed = rig.take(request(0, "a"), request(1, "b"))
        epochs = [await begin(rig, one) for one in (ended, delayed)]
        commit, said = rig.settler._commit, list[object]()

        def ask_at_once(batch: Any) -> None:
            commit(batch)
            if rig.delayed():
                said.append(rig.tenure.judge(rig.take(rig.copy(rig.delayed()[0], 2))[0]))
            else:
                said.append(at_once(rig.session.open(ended)).outcome)

        rig.settler._commit = ask_at_once  # type: ignore[method-assign]
        assert await rig.session.settle(ended, epochs[0], done(epochs[0]))
        assert await rig.session.settle(delayed, epochs[1], Retry(1, "busy"))
        assert said == [OpenOutcome.LOST, OpenOutcome.RUN]


def at_once(call: Any) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    with pytest.raises(StopIteration) as result:
        call.send(None)
    return result.value.value
