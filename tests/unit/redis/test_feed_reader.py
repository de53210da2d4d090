"""The reader of the feeds, over a server that answers as the test wants."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from headrace.broker.errors import BrokerRefused
from headrace.broker.redis_streams.feeds import FeedReader, Tail
from headrace.broker.redis_streams.link import Link, Reply, Value

PATIENCE_S = 5


class FakeLink:
    """Empty feeds. `answers`: of the blocking reads, in turn; more of them wait for ever."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Reply | Exception] = asyncio.Queue()

    async def call(self, *command: Value) -> Reply:
        if command[0] == "XREVRANGE":
            return []
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_who_comes_after_the_reading_failed_is_served_though_a_slow_watcher_has_not_gone_yet() -> None:
    link = FakeLink()
    feeds = FeedReader(cast(Link, link), cast(Link, link))
    slow, later = Tail("feed", "log"), Tail("feed", "log")
    feeds.attach(slow)
    async with asyncio.timeout(PATIENCE_S):
        assert await slow.take() is None
        link.answers.put_nowait(BrokerRefused("the server refused a command"))
        with pytest.raises(BrokerRefused):
            await slow.take()
        feeds.attach(later)
        assert await later.take() is None
        link.answers.put_nowait([(b"feed", [(b"1-0", [b"log", b"log", b"5-0", b"event"])])])
        assert await later.take() == [(b"5-0", b"event")]
    await feeds.close()
