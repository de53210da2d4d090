"""The broker goes away: killed, restarted, one node of three, a full disk."""

from __future__ import annotations

import asyncio

from tests.faults.brokers import Kafka, Valkey
from tests.faults.run import Run


async def broker_killed(run: Run) -> None:
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(run.rng.uniform(0.8, 1.5))
            await asyncio.to_thread(run.server.kill)
            await asyncio.sleep(run.rng.uniform(0, 0.6))
            await asyncio.to_thread(run.server.start)
        await asyncio.sleep(1)


async def broker_restarted(run: Run) -> None:
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(run.rng.uniform(0.8, 1.5))
            await asyncio.to_thread(run.server.stop)
            await asyncio.to_thread(run.server.start)
        await asyncio.sleep(1)


async def one_of_three_nodes_killed(run: Run) -> None:
    assert isinstance(run.server, Kafka)
    async with run.load(streams=6):
        for number in range(1, run.rounds + 1):
            await asyncio.sleep(1.5)
            node = 1 + (number % 3)
            await asyncio.to_thread(run.server.kill_node, node)
            await asyncio.sleep(8)
            await asyncio.to_thread(run.server.start_node, node)
        await asyncio.sleep(1)


async def disk_full(run: Run) -> None:
    """Writes fail, so nothing is acknowledged that is not there; it goes on when there is room again."""
    assert isinstance(run.server, Valkey)
    async with run.load(streams=6):
        for _ in range(run.rounds):
            await asyncio.sleep(0.8)
            run.server.fill_disk(room=run.rng.randrange(1, 20_000))
            full_until = asyncio.get_running_loop().time() + 2.5
            deaths = 0
            while asyncio.get_running_loop().time() < full_until:
                if not run.server.alive:
                    deaths += 1
                    await asyncio.to_thread(run.server.start)
                    run.server.fill_disk(room=run.rng.randrange(1, 2_000))
                await asyncio.sleep(0.05)
            assert deaths, "the disk was never full"
            await asyncio.to_thread(run.server.kill)  # it may be dying just now: then it would not be started
            await asyncio.to_thread(run.server.start)
    run.notes.append("the disk was full")
