"""Odd clients: they publish twice, publish rubbish, read slowly, or go away."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.broker.message import Lane
from tests.faults.raw import completion_line, publish
from tests.faults.run import Run


async def published_twice(run: Run) -> None:
    """Re-sends of the same id: at once, while it runs, after its end, out of order; and an id that another
    body has. One request, one result; the other body is dead-lettered and touches nothing."""
    async with run.load(streams=4):
        again = dict[str, str]()
        for _ in range(10 * run.rounds):
            accepted = await run.publish(tokens=run.rng.choice((2, 40)))
            assert accepted.body is not None
            again = {"request-id": accepted.request_id}
            for _ in range(run.rng.randint(1, 3)):
                await asyncio.sleep(run.rng.choice((0, 0, 0.1, 0.5)))
                await publish(run.raw, accepted.lane, accepted.body, again)
        other = completion_line("other", "another prompt", 5, 1)
        await run.publish_rubbish(other, again)
        await run.publish_rubbish(b"\xff\xfe no message", {"deadline": "tomorrow"}, Lane.STANDARD)


async def readers_slow_or_gone(run: Run) -> None:
    """The engine never waits for a reader; one that is slow sees every token, late."""
    quick: list[float] = []

    async def gone() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.8):
                await run.read(tokens=600, lane=Lane.STANDARD)

    loop = asyncio.get_running_loop()
    async with run.load(streams=3), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(run.read(tokens=400, patience_s=0.01))
            tasks.create_task(gone())
        await asyncio.sleep(1)
        began = loop.time()
        await run.read(tokens=50, lane=Lane.INTERACTIVE)
        quick.append(loop.time() - began)
    assert max(quick) < 10, "a reader waited for slow ones"
