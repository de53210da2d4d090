from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from headrace.broker.kafka.places import LogPlace
from headrace.broker.kafka.rings import Ring
from headrace.broker.kafka.tails import Tail, Tails
from headrace.broker.message import Lane
from headrace.broker.names import Names


# M
async def test_a_tail_that_is_attached_to_is_not_let_go_of_while_others_begin() -> None:
    anything: Any = SimpleNamespace(check=None)
    tails = Tails(anything, anything, anything, Names("x"))
    idle, new = LogPlace(Lane.STANDARD, "", 0), LogPlace(Lane.STANDARD, "", 1)
    tails._tails[idle] = Tail(idle, Ring(0, 0, 1000))
    tails._tails[idle].idle_since = time.monotonic() - 3600

    async def assign(starts: object) -> None: ...

    async def begin(places: Any) -> Any:
        await tails._assign(SimpleNamespace(assign=assign))  # type: ignore[arg-type]  # as its task does ten times a second
        return {place: Ring(0, 0, 1000) for place in places}

    tails._begin = begin  # type: ignore[method-assign]
    tails._start = lambda: None  # type: ignore[method-assign]
    attached = await tails.attach([idle, new])
    assert [tail.place for tail in attached] == [idle, new]
