"""What an owner does beside its requests, where one of its partitions takes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.broker.kafka import appender, housekeeping
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS
from tests.unit.kafka.rig import EPOCH, Rig
from tests.unit.kafka.rig_steps import forwarding, until


async def test_fences_of_others_are_repeated_while_one_partition_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That nobody leads it is known after half a minute, and readers look back for fences of seconds ago."""
    monkeypatch.setattr(housekeeping, "_TICK_S", 0.01)
    monkeypatch.setattr(appender, "FENCE_EVERY_MS", 20)
    async with Rig() as rig:
        keeping, _ = forwarding(rig)
        logs = PartitionLogs()
        logs.fence(EPOCH, 0)
        other = Tenure(TOPICS, 1, Names("x"), EPOCH, Committed(), logs, 0, rig.tenure.member)
        keeping._holdings.tenures |= {each.partition: each for each in (rig.tenure, other)}
        send, known = rig.publisher.send, asyncio.Event()

        async def without_leader(records: Sequence[Record]) -> list[Any]:
            if any(each.partition == 0 for each in records):
                await known.wait()
            return await send(records)

        monkeypatch.setattr(rig.publisher, "send", without_leader)
        task = asyncio.create_task(keeping._keep_logs())
        await until(lambda: len(rig.publisher.events) >= 4)
        assert other.fenced_ms
        assert not rig.tenure.fenced_ms
        known.set()
        await until(lambda: rig.tenure.fenced_ms > 0)
        task.cancel()
