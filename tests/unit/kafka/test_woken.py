"""An owner that was frozen, or whose clock was set, and that others have overtaken meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headrace.broker.kafka import appender
from headrace.broker.kafka.transactions import Outcome
from tests.unit.kafka.records import request
from tests.unit.kafka.rig import Rig
from tests.unit.kafka.rig_steps import begin, forwarded, forwarding


async def overtaken(rig: Rig, tenure: Any) -> None:
    """Its group refuses all that it commits; in a moment it hears that it is no member any more."""
    rig.transactions.outcomes = [Outcome.OUTDATED] * 1_000
    await asyncio.sleep(0.05)
    tenure.gone = True


async def test_an_owner_that_was_overtaken_forwards_nothing_that_became_due_meanwhile() -> None:
    async with Rig() as rig:
        keeping, delay = forwarding(rig, request(0, "a"))
        woken = asyncio.create_task(overtaken(rig, delay))
        await asyncio.sleep(0)
        await forwarded(keeping)
        await woken
        assert rig.publisher.sent == [], "others have forwarded it, and it may have ended long ago"


async def test_an_owner_that_was_overtaken_hands_nothing_on() -> None:
    async with Rig() as rig:
        (delivery,) = rig.take(request(0, "a"))
        await begin(rig, delivery)
        woken = asyncio.create_task(overtaken(rig, rig.tenure))
        await asyncio.sleep(0)
        await rig.settlements.hand_on(rig.tenure, delivery)
        await woken
        assert rig.publisher.sent == []


async def test_fences_are_repeated_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "FENCE_EVERY_MS", 20)
    async with Rig() as rig:
        await rig.appender.repeat_fences([rig.tenure])
        before, now_ns = len(rig.publisher.events), time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - 3_600_000_000_000)
        await asyncio.sleep(0.03)
        await rig.appender.repeat_fences([rig.tenure])
        assert len(rig.publisher.events) == before + 1
