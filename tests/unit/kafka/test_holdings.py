"""Partitions that go and come back, though their former time here has not quite ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from headrace.broker.kafka.holdings import Holdings, HoldingsParts
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS
from tests.unit.kafka.rig import Rig


async def test_what_came_back_is_not_dropped_by_who_still_lets_go_of_it() -> None:
    """Its last word waits for a broker that is away; meanwhile the membership is lost, a new one begins."""
    before, now = Rig().tenure, Rig().tenure
    answered = asyncio.Event()

    async def let_go(_: Sequence[Tenure]) -> None:
        await answered.wait()

    async def work() -> None: ...

    holdings = Holdings(HoldingsParts([TOPICS], Names("x"), work, let_go))
    holdings.attach(cast(Any, None), cast(Any, None))
    holdings.tenures[before.partition] = before
    holdings.revoked(frozenset([before.partition]), lambda: None)
    await asyncio.sleep(0)
    holdings.lost()
    assert before.gone
    holdings.tenures[now.partition] = now
    answered.set()
    await asyncio.gather(*holdings._letting_go)
    assert holdings.tenures == {now.partition: now}
    assert not now.gone
