"""The engine raises, dies or hangs; a request kills it each time."""

from __future__ import annotations

import asyncio

from headrace.broker.connect import connect
from headrace.broker.events import Started
from headrace.broker.message import RequestRef
from tests.faults.checker.record import COMPLETE
from tests.faults.run import Run
from tests.faults.scenarios.acts import until, victim_of
from tests.faults.stack import alive, engine_of, pid_of

_IN_COMPANY = 2  # deaths after which a request is tried alone
DEADLY = "Deadly"


async def poison(run: Run) -> None:
    """A request that kills its engine each time, over several consumers: dead-lettered after some deaths
    alone; its innocent neighbours go on. The engine is killed from outside once the request is in it."""
    broker = await connect(run.server.url, prefix=run.prefix)
    try:
        async with run.load(streams=4):
            await asyncio.sleep(0.5)
            bad = await run.publish(tokens=200, named=True, ends=("poisoned",), stream=True)
            deaths = 0
            async with asyncio.timeout(45):
                async for logged in broker.watch(RequestRef(bad.request_id)):
                    if isinstance(logged.event, Started) and await _strike(run, logged.event):
                        deaths += 1
    finally:
        await broker.close()
    run.notes.append(f"poison was buried after {deaths} deaths")


async def _strike(run: Run, started: Started) -> bool:
    """Kills the engine that has just been given the request. One that waits for its turn in quarantine, or
    that is only about to be read, is in no engine: a kill would hit another."""
    owner = pid_of(started.consumer)
    waits = started.deaths >= _IN_COMPANY and not started.alone
    if owner is None or waits or not started.fingerprint:
        return False
    await until(lambda: not alive(owner) or engine_of(owner) in run.stack.pids("engine"), "an engine")
    await asyncio.sleep(0.1)
    engine = engine_of(owner)
    if engine is not None:
        run.stack.kill(engine)
    return engine is not None


async def deadly_body(run: Run) -> None:
    """A body that kills the consumer that parses it. The first one leaves no trace; from then on each death
    is in the log before it happens, and after three of them alone nobody reads it any more."""
    broker = await connect(run.server.url, prefix=run.prefix)
    marks: list[Started] = []
    try:
        async with run.load(streams=4):
            await asyncio.sleep(0.5)
            bad = await run.publish(named=True, ends=("poisoned",), deadly=DEADLY)
            async with asyncio.timeout(80):
                async for logged in broker.watch(RequestRef(bad.request_id)):
                    marks += [logged.event] if isinstance(logged.event, Started) else []
    finally:
        await broker.close()
    known = [(mark.deaths, mark.lone_deaths, mark.alone) for mark in marks]
    assert known == [(0, 0, False), (1, 0, False), (2, 0, True), (3, 1, True), (4, 2, True)], known


async def engine_raises(run: Run) -> None:
    """Every seventh request of each engine fails; the failure is told, once, and nothing else suffers."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(40 * run.rounds):
            tasks.create_task(run.publish(tokens=30, ends=(*COMPLETE, "internal_error")))
            await asyncio.sleep(0.02)


async def engine_dies_by_itself(run: Run) -> None:
    """In a step of its own, again and again (`--sim-crash-after-steps`)."""
    async with run.load(streams=6):
        await asyncio.sleep(5 * run.rounds)


async def engine_hangs(run: Run) -> None:
    """SIGSTOP of the engine alone: its consumer goes on renewing leases, notices, and starts another one."""
    async with run.load(streams=6):
        await asyncio.sleep(0.8)
        if victim := victim_of(run, "engine"):
            run.stack.freeze(victim)
            await until(lambda: not alive(victim), "the watchdog to end a hung engine", 90)
