"""Time and its ends: wall clocks that jump, deadlines that pass, cancels in every state."""

from __future__ import annotations

import asyncio

from headrace.broker.connect import connect
from headrace.broker.message import Lane, RequestRef
from tests.faults.checker.record import COMPLETE
from tests.faults.run import Run
from tests.faults.scenarios.acts import start_consumer, until, write_clock
from tests.faults.stack import pid_of

_LATE_S = 1.5
_HEARD_S = 0.7  # until consumers know that a lane is paused


async def clock_jumps(run: Run) -> None:
    """The wall clock of both consumers is set forward and back by hours. Leases and deadlines go by the
    broker's clock: nothing expires, nothing is taken over that is not lost."""
    clock = run.stack.folder / "clock"
    async with run.load(streams=6):
        for offset in (3 * 3600, -3 * 3600, 0) * run.rounds:
            write_clock(clock, offset)
            await asyncio.sleep(0.4)
            await run.read(tokens=30, deadline_s=30)
            await asyncio.sleep(0.6)


async def clocks_disagree(run: Run) -> None:
    """One consumer is an hour ahead, another one an hour behind, from their start on. Each of them, while it
    is the only one, ends what is late and nothing else: deadlines and queue timeouts go by the broker's
    clock."""
    [ahead] = run.stack.pids("consumer")
    await _end_what_is_late(run, ahead)
    clock, ready = write_clock(run.stack.folder / "behind", -3600), run.stack.folder / "behind.json"
    behind = start_consumer(run, "--ready-file", str(ready), environment={"HEADRACE_TEST_CLOCK": str(clock)})
    await until(ready.exists, "the consumer that is behind", 60)
    run.stack.freeze(ahead)
    await _end_what_is_late(run, behind.pid)
    run.stack.thaw(ahead)


async def _end_what_is_late(run: Run, consumer: int) -> None:
    first = await run.read(tokens=5)  # also waits until the consumer has its partitions
    assert pid_of(first.owner) == consumer
    broker = await connect(run.server.url, prefix=run.prefix)
    try:
        await broker.pause(Lane.BACKGROUND)
        await asyncio.sleep(_HEARD_S)
        for _ in range(4):
            await run.publish(lane=Lane.BACKGROUND, queue_timeout_s=_LATE_S, ends=("queue_timeout",))
        await asyncio.sleep(_LATE_S + _HEARD_S)
        await broker.resume(Lane.BACKGROUND)
    finally:
        await broker.close()
    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as tasks:
        for number in range(4):
            tasks.create_task(run.read(tokens=30, deadline_s=30))
            tasks.create_task(run.read(tokens=2_000, deadline_s=_LATE_S + number / 10, ends=("expired",)))
            tasks.create_task(run.publish(tokens=5, queue_timeout_s=30))
    assert asyncio.get_running_loop().time() - began < _LATE_S + 5, "what was late ended too late"


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
