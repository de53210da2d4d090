from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Ring
from headrace.broker.kafka.tails import Tail, Tails
from headrace.broker.message import Lane
from headrace.broker.names import Names


async def test_a_tail_that_is_attached_to_is_not_let_go_of_while_others_begin() -> None:
    anything: Any = SimpleNamespace(check=None)
    tails = Tails(anything, anything, anything, Names("x"))
    idle, new = LogPlace(Lane.STANDARD, "", 0), LogPlace(Lane.STANDARD, "", 1)
    tails._tails[idle] = Tail(idle, Ring(0, 1000))
    tails._tails[idle].idle_since = time.monotonic() - 3600

    async def assign(starts: object) -> None: ...

    async def begin(places: Any) -> Any:
        await tails._assign(SimpleNamespace(assign=assign))  # type: ignore[arg-type]  # as its task does ten times a second
        return {place: Ring(0, 1000) for place in places}

    tails._begin = begin  # type: ignore[method-assign]
    tails._start = lambda: None  # type: ignore[method-assign]
    attached = await tails.attach([idle, new])
    assert [tail.place for tail in attached] == [idle, new]


async def test_who_needs_what_is_read_already_waits_for_no_first_look() -> None:
    """A partition whose leader is away is looked at for as long as that lasts."""
    anything: Any = SimpleNamespace(check=None)
    tails = Tails(anything, anything, anything, Names("x"))
    known, away = LogPlace(Lane.STANDARD, "", 0), LogPlace(Lane.STANDARD, "", 1)
    tails._tails[known] = Tail(known, Ring(0, 1000))

    async def begin(places: Any) -> Any:
        await asyncio.Event().wait()

    tails._begin = begin  # type: ignore[method-assign]
    looking = asyncio.create_task(tails.attach([away]))
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert [tail.watchers for tail in await tails.attach([known])] == [1]
    looking.cancel()
