"""Finds streams that stand among our request streams and that nobody reads.

Any client can XADD to `headrace.requests.foo`; nothing but a walk over the keys shows it. The walk is for
people who look, not for services, and it is bounded: it passes over what lies behind `_MOST_KEYS` keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from headrace.broker.contract import Stray
from headrace.broker.names import Names
from headrace.broker.redis_streams.codec import queue_of
from headrace.broker.redis_streams.link import Link

_KEYS_AT_ONCE = 2_000  # about a millisecond of the server's time
_MOST_KEYS = 1_000_000


async def find_strays(link: Link, names: Names, pools: Collection[str]) -> list[Stray]:
    """Those with a name that is no lane's, or that of a pool which is none of `pools`."""
    found = []
    async for key in _streams(link, f"{names.request_base}.*"):
        name = key.decode(errors="replace")
        queue = queue_of(name, names)
        if queue is None or queue[1] not in pools:
            found.append(Stray(name, await link.call("XLEN", key)))
    return sorted(found, key=lambda stray: stray.queue)


async def _streams(link: Link, pattern: str) -> AsyncIterator[bytes]:
    """Keys of streams; what a prefix may hold has no meaning in a pattern."""
    cursor, seen = b"0", set[bytes]()  # a walk may come by the same key twice
    for _ in range(_MOST_KEYS // _KEYS_AT_ONCE):
        scan = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_AT_ONCE, "TYPE", "stream")
        cursor, keys = await link.call(*scan)
        for key in set(keys) - seen:
            yield key
        seen.update(keys)
        if cursor == b"0":
            return
