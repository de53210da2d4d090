"""The broker goes away: killed, restarted, one node of three, a full disk."""

from __future__ import annotations

import asyncio

from tests.faults.brokers import Kafka, Kind
from tests.faults.run import Run
from tests.faults.scenarios.acts import until

_FULL: dict[Kind, int] = {"redis": 5, "kafka": 2}  # times in a round; Kafka takes long to start


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
    """Writes fail, so nothing is acknowledged that is not there; it goes on when there is room again. The
    server ends itself: it could not keep its promise. Started again, it is full again soon."""
    server = run.server
    async with run.load(streams=6):
        await asyncio.sleep(0.8)
        for again in range(_FULL[server.kind] * run.rounds):
            server.fill_disk(room=run.rng.randrange(1, 2_000 if again else 20_000))
            await until(lambda: not server.alive, "a write that does not fit")
            await asyncio.to_thread(server.start)
        await asyncio.sleep(1)
