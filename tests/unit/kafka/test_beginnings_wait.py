"""Who waits for what tells where a log begins, with a cluster that leaves questions open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.events import Delta, Event, Started
from headrace.broker.kafka import logs
from headrace.broker.kafka.event_records import encode_event_record
from headrace.broker.kafka.homes import Home
from headrace.broker.kafka.logs import LogReader
from headrace.broker.kafka.places import LogPlace, Position, log_key
from headrace.broker.kafka.rings import Entry
from headrace.broker.message import Lane, RequestRef
from headrace.broker.names import Names

REF, PLACE, NAMES, COPY = RequestRef("theirs"), LogPlace(Lane.STANDARD, "", 0), Names("x"), 7
OWN = Started(1, "me", Position(PLACE, COPY).text(NAMES), 7, b"hash", "model")


class Slow:
    """A partition whose events come as the test wants, in a group without a coordinator."""

    def __init__(self) -> None:
        self.runs, self.asked = asyncio.Event(), asyncio.Event()

    async def follow(self, *_: object) -> AsyncIterator[Entry]:
        await self.runs.wait()
        key = log_key(REF)
        events: list[Event] = [OWN, Delta(1, 0, (1,), "a")]
        for offset, event in enumerate(events):
            yield Entry(offset, offset, key.encode(), encode_event_record("x", 0, key, event).value or b"")
        await asyncio.Event().wait()

    async def is_finished(self, *_: object) -> bool:
        self.asked.set()
        await asyncio.Event().wait()
        return False


async def test_a_stream_begins_though_nobody_can_say_whether_its_copy_was_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_LOOK_AGAIN_S", 0.01)
    slow, nothing = Slow(), SimpleNamespace()
    homes: Any = SimpleNamespace(begins_here=lambda ref, home: home)
    reader: Any = slow
    log_reader = LogReader(homes, nothing, reader, NAMES, slow.is_finished)  # type: ignore[arg-type]
    home = Home(PLACE, 1_000, copy=COPY)
    async with asyncio.timeout(2):
        looking = asyncio.create_task(log_reader._without_doubt(REF, home))
        await slow.asked.wait()
        slow.runs.set()
        assert await looking == home
