"""A delivery that was lost, while the same one is here again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.broker.contract import Opened, OpenOutcome
from headrace.broker.message import Delivery
from tests.unit.consumer.fakes import Rig, delivery, eventually


async def test_a_loss_that_is_told_after_the_delivery_came_back_is_not_that_of_the_new_one() -> None:
    """Kafka: partitions are lost and assigned again between two heartbeats."""
    async with Rig() as rig:
        first, again = delivery(), delivery()
        rig.publish(first)
        await rig.engine.get()
        rig.publish(again)
        request = await rig.engine.get(2)
        rig.session.lost = [first]
        await eventually(lambda: not rig.session.lost, "the heartbeat")
        await asyncio.sleep(0.01)
        assert rig.worker.in_flight == 1
        rig.engine.give(request.id, 65, finish="stop")
        await rig.settled()


@pytest.mark.parametrize("call", ["open", "settle"])
async def test_one_that_is_lost_may_leave_after_the_same_one_delivered_anew(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage its call waits for its next attempt; the delivery comes back and ends meanwhile."""
    async with Rig() as rig:
        calls, gate, begun = getattr(rig.session, call), asyncio.Event(), asyncio.Event()

        async def first_waits(one: Delivery, *rest: object) -> object:
            if not begun.is_set():
                begun.set()
                await gate.wait()
                return Opened(OpenOutcome.LOST) if call == "open" else False
            return await calls(one, *rest)

        monkeypatch.setattr(rig.session, call, first_waits)
        rig.publish(delivery())
        if call == "settle":
            rig.engine.give((await rig.engine.get()).id, 65, finish="stop")
        await begun.wait()
        rig.session.lost = [rig.session.pulled["r1"]]
        await eventually(lambda: not rig.session.lost, "the heartbeat")
        rig.publish(delivery())
        count = 2 if call == "settle" else 1
        rig.engine.give((await rig.engine.get(count)).id, 66, finish="stop")
        await rig.settled()
        await eventually(lambda: rig.worker.in_flight == 1)
        gate.set()
        await eventually(lambda: rig.worker.in_flight == 0)
        await asyncio.sleep(0.01)
        assert not rig.task.done(), rig.task
        assert rig.worker.waiting == 0


async def test_twins_that_a_forwarded_retry_left_are_each_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka: both bear the position of the first publish, and each holds a record that must be completed."""
    async with Rig() as rig:
        opened, settled = rig.session.open, list[str]()
        settle = rig.session.settle

        async def judge(one: Delivery) -> Opened:
            return Opened(OpenOutcome.TWIN) if one.record == "copy 2" else await opened(one)

        async def note(one: Delivery, *rest: Any) -> bool:
            settled.append(one.record)
            return await settle(one, *rest)

        monkeypatch.setattr(rig.session, "open", judge)
        monkeypatch.setattr(rig.session, "settle", note)
        rig.publish(delivery(record="copy 1"), delivery(record="copy 2"))
        rig.engine.give((await rig.engine.get()).id, 65, finish="stop")
        await eventually(lambda: rig.worker.in_flight == 0)
        assert sorted(settled) == ["copy 1", "copy 2"]
