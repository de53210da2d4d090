"""What tests do with a rig's session, as a consumer does it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.contract import Append, Done, OpenOutcome
from headrace.broker.events import Finished, Started
from headrace.broker.kafka.ended import TOLD_AFTER
from headrace.broker.message import Delivery
from tests.unit.kafka.rig import Rig


def started(delivery: Delivery, epoch: int) -> Started:
    return Started(epoch, "c", delivery.position, 7, delivery.message.body_hash, "model")


def done(epoch: int) -> Done:
    return Done(Finished(epoch, "stop"), b"line")


async def begin(rig: Rig, delivery: Delivery) -> int:
    opened = await rig.session.open(delivery)
    assert opened.outcome is OpenOutcome.RUN, opened
    assert await rig.session.append([Append(delivery, opened.epoch, [started(delivery, opened.epoch)])]) == [
        True
    ]
    return opened.epoch


async def cancel_after(steps: int, call: Any) -> None:
    task = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def settled(rig: Rig) -> None:
    await rig.settler.flushed(5)
    for _ in range(5):
        await asyncio.sleep(0)


async def finish_all(rig: Rig, deliveries: list[Delivery]) -> None:
    """What a consumer does with what it takes."""
    for delivery in deliveries:
        opened = await rig.session.open(delivery)
        if opened.outcome is OpenOutcome.RUN:
            await rig.session.append([Append(delivery, opened.epoch, [started(delivery, opened.epoch)])])
            await rig.session.settle(delivery, opened.epoch, done(opened.epoch))
        elif opened.outcome is not OpenOutcome.LOST:
            await rig.session.settle(delivery, 0, Done())


async def go_on(rig: Rig, other: Delivery) -> None:
    """Others write as much as is looked back for."""
    epoch = (await rig.session.open(other)).epoch
    for _ in range(TOLD_AFTER + 10):
        await rig.session.append([Append(other, epoch, [started(other, epoch)])])
    await rig.session.settle(other, epoch, done(epoch))


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came true")
