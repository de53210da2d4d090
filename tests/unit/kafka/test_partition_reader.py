from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

from headrace.broker.events import Fence
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.partition_reader import Begin, PartitionReader
from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Ring
from headrace.broker.kafka.tails import Tail
from headrace.broker.message import Lane
from headrace.broker.names import Names

PLACE = LogPlace(Lane.STANDARD, "", 0)
FENCES = {4_500: 5, 20_300: 6}  # offset → epoch
FIRST, END = 4_000, 50_000
KEY = b"/theirs"


class Fenced:
    """A history with a fence here and there, and events of one request. Its stamps are its offsets."""

    def __init__(self, *own: int) -> None:
        self.looks, self.fences, self.own = 0, dict(FENCES), own
        self.held_up: asyncio.Event | None = None

    async def bounds(self, partitions: Any, since_ms: int | None = None) -> Any:
        await asyncio.sleep(0)
        return {p: (max(FIRST, since_ms or 0), END) for p in partitions}

    async def all(self, spans: Any, wanted: Any) -> list[Any]:
        self.looks += 1
        held_up, self.held_up = self.held_up, None
        await (asyncio.sleep(0.01) if held_up is None else held_up.wait())
        [(start, end)] = spans.values()
        return [_fence(at, epoch) for at, epoch in self.fences.items() if start <= at < end]

    async def some(self, partition: Any, span: tuple[int, int], wanted: Any, least: int) -> list[Any]:
        return [_event(at) for at in self.own if span[0] <= at < span[1]]


def _event(offset: int) -> Any:
    return SimpleNamespace(topic="x", partition=0, offset=offset, timestamp=offset, key=KEY, value=b"event")


def _fence(offset: int, epoch: int) -> Any:
    value = encode_event_record("x", 0, None, Fence(epoch)).value
    return SimpleNamespace(topic="x", partition=0, offset=offset, timestamp=offset, key=None, value=value)


def reader_of(history: Any, tails: Any = None) -> PartitionReader:
    return PartitionReader(tails, history, Names("x"), 0)


async def test_streams_that_begin_at_about_the_same_time_share_one_look_for_the_fence_in_force() -> None:
    history = Fenced()
    reader, ring = reader_of(history), Ring(END, 1_000)
    begun = range(20_000, 21_000, 5)
    found = await asyncio.gather(*(reader._start(PLACE, at, ring) for at in begun))
    assert history.looks <= 3
    for at, begin in zip(begun, found, strict=True):
        assert begin.start is not None
        assert FIRST <= begin.start <= at
        assert begin.fence is not None
        # The rest is read behind it.
        assert begin.fence.offset == max(below for below in FENCES if below < begin.start)


async def test_who_starts_with_what_is_kept_starts_there() -> None:
    reader, ring = reader_of(Fenced()), Ring(END, 1_000)
    assert await reader._start(PLACE, 0, ring) == Begin(FIRST, FIRST)
    assert (await reader._start(PLACE, FIRST + 900, ring)).start == FIRST


async def test_a_look_that_takes_long_holds_up_only_those_who_begin_near_it() -> None:
    history, ring = Fenced(), Ring(END, 1_000)
    reader = reader_of(history)
    known = await reader._start(PLACE, 20_500, ring)
    history.held_up = held_up = asyncio.Event()
    slow = asyncio.create_task(reader._start(PLACE, 40_500, ring))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(2):
        assert (await reader._start(PLACE, 20_500, ring)) == known
        assert (await reader._start(PLACE, 30_500, ring)).start == 30_000
    held_up.set()
    assert (await slow).start == 40_000


async def test_a_partition_that_is_made_anew_has_none_of_its_former_fences() -> None:
    """One of them may say an epoch above all that comes: whoever is shown it takes all of that for void."""
    history, ring = Fenced(), Ring(END, 1_000)
    reader = reader_of(history)
    before = await reader._start(PLACE, 20_500, ring)
    assert before.fence is not None
    history.fences = {20_000 - 5: 1}
    anew = await reader._start(PLACE, 20_500, ring.anew(END))
    assert anew.fence is not None
    assert anew.fence.offset == 20_000 - 5


async def test_a_reader_is_not_shown_what_an_id_stood_for_before() -> None:
    """It starts early enough to see the fence in force; a log whose time is over may still stand there."""
    tail = Tail(PLACE, Ring(END, 1_000))

    async def attach(places: Any) -> list[Tail]:
        return [tail]

    tails: Any = SimpleNamespace(attach=attach, detach=lambda tail: None, check=lambda: None)
    reader = reader_of(Fenced(20_100, 20_600, 20_700), tails)
    async with aclosing(reader.follow(PLACE, KEY, 20_500)) as entries:
        shown = [(await anext(entries)).offset for _ in range(3)]
    assert shown == [4_500, 20_600, 20_700]
