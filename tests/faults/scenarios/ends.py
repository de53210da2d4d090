"""Time and its ends: wall clocks that jump, deadlines that pass, cancels in every state."""

from __future__ import annotations

import asyncio

from headrace.broker.connect import connect
from headrace.broker.message import RequestRef
from tests.faults.checker.record import COMPLETE
from tests.faults.run import Run


async def clock_jumps(run: Run) -> None:
    """The wall clock of both consumers is set forward and back by hours. Leases and deadlines go by the
    broker's clock: nothing expires, nothing is taken over that is not lost."""
    clock = run.stack.folder / "clock"
    async with run.load(streams=6):
        for offset in (3 * 3600, -3 * 3600, 0) * run.rounds:
            clock.with_suffix(".new").write_text(str(offset))
            clock.with_suffix(".new").rename(clock)
            await asyncio.sleep(0.4)
            await run.read(tokens=30, deadline_s=30)
            await asyncio.sleep(0.6)


async def cancelled_and_expired(run: Run) -> None:
    """In every state: while it waits, while it runs, after its end."""
    broker = await connect(run.server.url, prefix=run.prefix)
    try:
        async with run.load(streams=4), asyncio.TaskGroup() as tasks:
            for number in range(6 * run.rounds):
                either = (*COMPLETE, "cancelled")
                accepted = await run.publish(tokens=60, ends=either)
                await asyncio.sleep(run.rng.choice((0, 0.05, 0.3, 1)))
                await broker.cancel(RequestRef(accepted.request_id))
                ends = (*COMPLETE, "expired")
                tasks.create_task(
                    run.read(tokens=20 + 60 * (number % 2), ends=ends, deadline_s=run.rng.uniform(0.3, 1))
                )
    finally:
        await broker.close()
