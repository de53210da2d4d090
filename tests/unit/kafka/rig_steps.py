"""What tests do with a rig's session, as a consumer does it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.structs import TopicPartition

from headrace.broker.contract import Append, Done, OpenOutcome
from headrace.broker.events import Finished, Started
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.delays import DelayTenure
from headrace.broker.kafka.ended import TOLD_AFTER
from headrace.broker.kafka.housekeeping import Housekeeping
from headrace.broker.kafka.rhythm import Rhythm
from headrace.broker.message import Delivery
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS
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


def forwarding(rig: Rig, *records: Any) -> tuple[Housekeeping, DelayTenure]:
    """Who forwards what waits in a delay topic, and its partition with these records; it is one second after
    the beginning of time. Sends 1,000 bytes at most."""
    partition, rhythm = TopicPartition(TOPICS.delayed[0], 0), Rhythm(5.0, time.monotonic())
    delay = DelayTenure(TOPICS, partition, Names("x"), Committed(), rig.tenure.member, rhythm)
    delay.fetched(records)
    holdings: Any = SimpleNamespace(tenures={}, delays={partition: delay})
    moved = asyncio.Event()

    async def changed(timeout_s: float) -> None:
        await asyncio.wait({waiting := asyncio.ensure_future(moved.wait())}, timeout=min(timeout_s, 0.01))
        waiting.cancel()
        moved.clear()

    holdings.changed, holdings.notify = changed, moved.set
    holdings.tick = holdings.flow = lambda: None
    at: Any = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 1_000), publisher=rig.publisher)
    at.settings = SimpleNamespace(max_sent_bytes=1_000)
    return Housekeeping(at, holdings, rig.appender, rig.settlements, rig.settler), delay


async def forwarded(keeping: Housekeeping) -> None:
    """What is due goes on, as far as it goes."""
    await keeping._forward_due()
    if keeping._forwarding:
        await asyncio.wait(keeping._forwarding, timeout=1)


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
