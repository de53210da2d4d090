"""Who owns a request is asked anew after an append of unknown fate: for each by itself."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.contract import Opened, Release, Retry
from headrace.broker.errors import BrokerError
from headrace.broker.message import Delivery
from headrace.gpu_engine.api import Output, Ready
from tests.unit.consumer.fakes import Rig, delivery, eventually


def hold_reopening(rig: Rig, name: str, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """From now on the broker does not answer who opens this request."""
    opens, gate = rig.session.open, asyncio.Event()

    async def slowly(one: Delivery) -> Opened:
        if one.ref.request_id == name:
            await gate.wait()
        return await opens(one)

    monkeypatch.setattr(rig.session, "open", slowly)
    return gate


async def test_one_that_is_found_lost_after_a_failed_append_is_not_given_to_the_next_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        await rig.engine.get(2)
        await eventually(lambda: bool(rig.session.starts("a") and rig.session.starts("b")))
        gate = hold_reopening(rig, "b", monkeypatch)
        rig.session.take_over("a")
        rig.session.fail("append", lands=False)
        rig.first_words = None  # the next engine takes its time
        opened = rig.session.calls["open"]
        rig.engine.die()  # the logs are to say so: that append fails
        second = await rig.next_engine(2)
        await eventually(lambda: rig.session.calls["open"] > opened, "the re-opening of a")
        await asyncio.sleep(0.01)
        second.say(Ready(rig.info))
        await asyncio.sleep(0.02)
        gate.set()
        await asyncio.sleep(0.02)
        assert not rig.task.done(), rig.task
        assert len(second.added) == 1


async def test_one_that_is_found_lost_after_a_failed_append_is_stopped_in_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        keys = {name: (await rig.engine.get(n)).id for n, name in ((1, "a"), (2, "b"))}
        await eventually(lambda: bool(rig.session.starts("a") and rig.session.starts("b")))
        gate = hold_reopening(rig, "b", monkeypatch)
        rig.session.take_over("a")
        rig.session.fail("append", lands=False)
        opened = rig.session.calls["open"]
        rig.engine.step(*(Output(id=k, token_ids=[65], text="A") for k in keys.values()))
        await eventually(lambda: rig.session.calls["open"] > opened, "the re-opening of a")
        await asyncio.sleep(0.01)
        rig.engine.give(keys["a"], 66)
        await asyncio.sleep(0.01)
        gate.set()
        await eventually(lambda: rig.worker.counters.fenced == 1)
        await asyncio.sleep(0.01)
        assert keys["a"] in rig.engine.aborted


async def test_one_that_cannot_be_reopened_does_not_silence_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        rig.publish(delivery("a"), delivery("b"))
        keys = {name: (await rig.engine.get(n)).id for n, name in ((1, "a"), (2, "b"))}
        await eventually(lambda: bool(rig.session.starts("a") and rig.session.starts("b")))
        hold_reopening(rig, "a", monkeypatch)
        rig.session.fail("append", lands=False)
        rig.engine.step(*(Output(id=k, token_ids=[65], text="A") for k in keys.values()))
        await eventually(lambda: rig.session.epochs["b"] == 2)
        await rig.logged("A", "b")


async def test_a_log_that_cannot_be_read_is_left_for_later_though_the_broker_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Rig() as rig:
        opens = rig.session.open

        async def reading(one: Delivery) -> Opened:
            if one.ref.request_id == "newer":
                raise BrokerError("an event of an unknown kind")
            return await opens(one)

        monkeypatch.setattr(rig.session, "open", reading)
        rig.session.fail("settle", lands=False)
        rig.publish(delivery("newer"))
        await eventually(lambda: "newer" in rig.session.settled or rig.task.done())
        assert not rig.task.done(), rig.task
        assert isinstance(await rig.settled("newer"), Retry | Release)
