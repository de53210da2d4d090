"""What every peer's script shares: its two roles, and the lines in which it talks to the benchmark.

    <peer>.py worker  URL        runs one worker process until SIGTERM
    <peer>.py driver  URL        obeys lines on stdin: `publish N`, then `collect`; answers each with one
                                 JSON line, `{"seconds": …}`

`collect` reads back every result published since the last one, through the peer's own client, and refuses
a result that is not the task's: a peer that loses or mixes them up does not count as fast.

Standard library only: these scripts run in the peers' own environments.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

AT_ONCE = 64  # calls under way at a time, where the client is asynchronous and has no bulk call


class Client(Protocol):
    """One peer as its users see it. Numbers are arguments and results of the no-op task."""

    async def publish(self, numbers: Iterable[int]) -> None: ...

    async def collect(self) -> list[int]:
        """The results of all that was published since the last call."""


async def drive(client: Client) -> None:
    """Obeys stdin until it is closed."""
    loop, published = asyncio.get_running_loop(), range(0)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        word, _, count = line.strip().partition(" ")
        began = time.perf_counter()
        if word == "publish":
            published = range(int(count))
            await client.publish(published)
        else:
            results = await client.collect()
            if sorted(results) != list(published):
                raise SystemExit(f"{len(results)} results for {len(published)} tasks, or not theirs")
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


async def side_by_side(calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
    """Results of the calls in their order, `AT_ONCE` of them under way at a time."""
    waiting, results = enumerate(calls), dict[int, T]()

    async def work() -> None:
        for number, call in waiting:
            results[number] = await call()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return [results[number] for number in sorted(results)]


def main(worker: Callable[[], None], driver: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Takes the role that the command line names."""
    if sys.argv[1] == "worker":
        worker()
    else:
        asyncio.run(driver())


def url() -> str:
    """Of the server, from the command line."""
    return sys.argv[2]
