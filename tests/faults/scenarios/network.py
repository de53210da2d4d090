"""The network between our processes and the broker, by way of a proxy: cut, slow, silent."""

from __future__ import annotations

import asyncio

from tests.faults.run import Run
from tests.faults.scenarios.acts import victim_of


async def replies_cut(run: Run) -> None:
    """The write has happened, its reply is lost: whoever wrote must find out, and not do it twice."""
    assert run.proxy is not None
    proxy = run.proxy
    async with run.load(streams=8):
        for _ in range(8 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.1, 0.6))
            proxy.cut_replies(lambda: run.rng.choice((0, 0, 1, 5, 30, 200)))
        await asyncio.sleep(0.5)
    assert proxy.cuts, "no connection was cut"
    run.notes.append(f"{proxy.cuts} connections cut")


async def writes_reordered(run: Run) -> None:
    """Every chunk takes its own time, so what goes over several connections arrives in another order."""
    assert run.proxy is not None
    run.proxy.lag_s = (0.0, 0.04)
    async with run.load(streams=6, tokens=(20, 60)):
        for _ in range(run.rounds):
            await asyncio.sleep(1.5)
            if victim := victim_of(run, "consumer"):
                run.stack.kill(victim)
        await asyncio.sleep(1.5)
    run.proxy.lag_s = (0.0, 0.0)


async def network_silent(run: Run) -> None:
    """Bytes vanish and nobody is told, for longer than a lease."""
    assert run.proxy is not None
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(0.8)
            run.proxy.swallow = True
            await asyncio.sleep(1.5 * run.lease_s)
            run.proxy.cut()
            run.proxy.swallow = False
        await asyncio.sleep(1)
