"""Dead letters of a Redis, read by the page."""

from __future__ import annotations

from typing import cast

from headrace.broker.names import Names
from headrace.broker.redis_streams.calls import BrokerCalls
from headrace.broker.redis_streams.letters import DeadLetters
from headrace.broker.redis_streams.link import Link, Reply, Value
from headrace.broker.redis_streams.scripts import Scripts
from headrace.broker.redis_streams.settings import Retention


class Stream:
    """A link to a server that holds one stream of `length` entries."""

    def __init__(self, length: int) -> None:
        self.ids = [f"{1000 + number}-0" for number in range(length)]
        self.largest_reply = 0

    async def call(self, command: str, _: str, start: str, end: Value, *count: Value) -> Reply:
        assert count[0] == "COUNT"
        most = int(count[1])
        if command == "XREVRANGE":
            found = self.ids[-most:][::-1]
        else:
            last = end.decode() if isinstance(end, bytes) else str(end)
            found = [i for i in self.ids if self._behind(i, start) and i <= last][:most]
        self.largest_reply = max(self.largest_reply, len(found))
        return [(i.encode(), [b"reason", b"why", b"origin", b"lane/1-1", b"body", b"x"]) for i in found]

    def _behind(self, entry_id: str, start: str) -> bool:
        return start == "-" or entry_id > start.removeprefix("(")


def letters_of(stream: Stream) -> DeadLetters:
    names = Names()
    link = cast(Link, stream)
    return DeadLetters(link, Scripts(link), BrokerCalls(names, Retention()), names)


async def test_all_letters_are_read_a_page_at_a_time() -> None:
    stream = Stream(300)
    found = [letter.at_ms async for letter in letters_of(stream).each()]
    assert found == [1000 + number for number in range(300)]
    assert stream.largest_reply == 64


async def test_no_letters_are_no_letters() -> None:
    assert [letter async for letter in letters_of(Stream(0)).each()] == []
