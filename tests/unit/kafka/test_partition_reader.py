from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.broker.events import Fence
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.partition_reader import PartitionReader
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Ring
from headrace.broker.message import Lane
from headrace.broker.names import Names

PLACE = LogPlace(Lane.STANDARD, "", 0)
FENCES = {4_500: 5, 20_300: 6}  # offset → epoch
FIRST, END = 4_000, 50_000


class Fenced:
    """A history with a fence here and there. Its stamps are its offsets."""

    def __init__(self) -> None:
        self.looks = 0

    async def bounds(self, partitions: Any, since_ms: int | None = None) -> Any:
        await asyncio.sleep(0)
        return {p: (max(FIRST, since_ms or 0), END) for p in partitions}

    async def all(self, spans: Any, wanted: Any) -> list[Any]:
        self.looks += 1
        await asyncio.sleep(0.01)
        [(start, end)] = spans.values()
        return [_fence(at, epoch) for at, epoch in FENCES.items() if start <= at < end]


def _fence(offset: int, epoch: int) -> Any:
    value = encode_event_record("x", 0, None, Fence(epoch)).value
    return SimpleNamespace(topic="x", partition=0, offset=offset, timestamp=offset, key=None, value=value)


async def test_streams_that_begin_at_about_the_same_time_share_one_look_for_the_fence_in_force() -> None:
    history: Any = Fenced()
    anything: Any = SimpleNamespace()
    reader = PartitionReader(anything, history, Names("x"), 0)
    begun = range(20_000, 21_000, 5)
    found = await asyncio.gather(*(reader._start(PLACE, at, Ring(END, 1_000)) for at in begun))
    assert history.looks <= 3
    for at, (start, fence) in zip(begun, found, strict=True):
        assert start is not None
        assert FIRST <= start <= at
        assert fence is not None
        assert fence.offset == max(below for below in FENCES if below < start)  # the rest is read behind it


async def test_who_starts_with_what_is_kept_starts_there() -> None:
    history: Any = Fenced()
    anything: Any = SimpleNamespace()
    reader = PartitionReader(anything, history, Names("x"), 0)
    assert await reader._start(PLACE, 0, Ring(END, 1_000)) == (FIRST, None)
    assert (await reader._start(PLACE, FIRST + 900, Ring(END, 1_000)))[0] == FIRST
