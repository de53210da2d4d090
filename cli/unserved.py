"""Requests that wait for a consumer which is not there: the queue takes them, and says nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

from headrace.broker.contract import Broker, ConsumerEntry, QueueStats
from headrace.broker.errors import BrokerError
from headrace.broker.ids import read_request_id
from headrace.broker.message import DEFAULT_POOL

T = TypeVar("T")

SILENCE_S = 4.0  # longer than a consumer that is up needs to begin, as a rule


def unserved(pool: str, stats: QueueStats, up: Iterable[ConsumerEntry]) -> str | None:
    """One sentence where something of the pool waits, or is held, that no consumer of those that are up
    serves."""
    consumers = [entry for entry in up if entry.pool == pool]
    served = {lane for entry in consumers for lane in entry.lanes}
    idle = [lane for lane, each in stats.lanes.items() if each.waiting + each.leased and lane not in served]
    if consumers and idle:
        lanes = ", ".join(lane.value for lane in idle)
        start = f"{_start(pool)} --lane {idle[0].value}"
        return f"no consumer of {_name(pool)} serves {lanes}: start one with `{start}`"
    if not consumers and (idle or stats.retrying):
        return f"no consumer of {_name(pool)} is up: start one with `{_start(pool)}`"
    return None


async def unserved_like(broker: Broker, request_id: str) -> str | None:
    """The same for the pools where a request may stand; the lane is that of its id, where it says one."""
    own, up = read_request_id(request_id), await broker.consumers()
    for pool in await broker.pools():
        stats = await broker.stats(pool)
        if own is not None:
            stats = replace(stats, lanes={own.lane: stats.lanes[own.lane]})
        if (sentence := unserved(pool, stats, up)) is not None:
            return sentence
    return None


async def noticing_silence(
    events: AsyncGenerator[T], say: Callable[[], Awaitable[str | None]], tell: Callable[[str], None]
) -> AsyncGenerator[T]:
    """The events, which are closed with it. After each SILENCE_S without one what `say` finds is told, unless
    it was told last. A broker that cannot answer says nothing: who reads the events hears of that."""
    told: str | None = None
    async with aclosing(events):
        while True:
            following = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait({following}, timeout=SILENCE_S))[0]:
                    with suppress(BrokerError):
                        sentence = await say()
                        if sentence is not None and sentence != told:
                            tell(sentence)
                            told = sentence
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            event = following.result()
            if event is None:
                return
            yield event


def _name(pool: str) -> str:
    return "the default pool" if pool == DEFAULT_POOL else f"the pool {pool}"


def _start(pool: str) -> str:
    return "headrace consumer" if pool == DEFAULT_POOL else f"headrace consumer --pool {pool}"
