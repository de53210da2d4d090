"""SIGKILL: consumers, engines, gateways."""

from __future__ import annotations

import asyncio
import json

from tests.faults.measures import interruptions, percentile_95
from tests.faults.run import Run
from tests.faults.scenarios.acts import busiest, until, victim_of
from tests.faults.stack import BLOB_THRESHOLD

KILLS_A_ROUND = 6  # of `everything_killed`


async def consumers_killed(run: Run) -> None:
    """SIGKILL at random instants; the interrupted go on elsewhere within a lease and two seconds, those too
    whose body lies in the store."""
    async with run.load(streams=10, large=0.5):
        for _ in range(3 * run.rounds):
            await until(lambda: len(run.stack.pids("consumer")) == 2, "both consumers", 60)
            await asyncio.sleep(run.rng.uniform(0.3, 1.2))
            if victim := busiest(run):
                run.stack.kill(victim)
            await asyncio.sleep(run.lease_s)
        await asyncio.sleep(run.lease_s)
    found = interruptions(run.transcripts(), run.kills(), run.step_s)
    assert any(each.request_id in run.large for each in found), "no large one was interrupted: nothing proved"
    assert len(list(run.stack.store.glob("??/*"))) >= len(run.large), "large bodies travelled on the queue"
    late = percentile_95([each.wait_s for each in found])
    assert late <= run.lease_s + 2, f"p95 from SIGKILL to the next visible token: {late:.2f} s"


async def consumers_killed_while_they_settle(run: Run) -> None:
    """Short answers, many of them: much of the time one is just ending."""
    async with run.load(streams=12, tokens=(1, 3)):
        for _ in range(3 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.5, 1.5))
            if victim := victim_of(run, "consumer"):
                run.stack.kill(victim)


async def engines_killed(run: Run) -> None:
    async with run.load(streams=8):
        for _ in range(4 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.4, 1.2))
            if victim := victim_of(run, "engine"):
                run.stack.kill(victim)


async def gateways_killed(run: Run) -> None:
    """Readers re-attach, to any gateway, with the last cursor."""
    ready = run.stack.folder / "gateway-2.json"
    run.stack.start_beside(
        *("gateway", "--broker", run.stack.broker, "--prefix", run.prefix, "--grpc-port", "0"),
        *("--ready-file", str(ready), "--blob-threshold", str(BLOB_THRESHOLD)),
    )
    await until(ready.exists, "a second gateway")
    run.more_gateways.append(_target(ready.read_text()))
    async with run.load(streams=8):
        for _ in range(2 * run.rounds):
            await asyncio.sleep(run.rng.uniform(0.5, 1.2))
            if victim := victim_of(run, "gateway"):
                run.stack.kill(victim)
                await asyncio.sleep(0.2)
    assert any(reader.attachments > 1 for reader in run.readers), "no reader had to come back"


def _target(ready: str) -> str:
    return str(json.loads(ready)["grpc"])


async def everything_killed(run: Run) -> None:
    """All kinds, at random, until so many are dead."""
    async with run.load(streams=12):
        while len(run.kills()) < KILLS_A_ROUND * run.rounds:
            await asyncio.sleep(run.rng.uniform(0.2, 1.6))
            if victim := victim_of(run, run.rng.choice(("consumer", "consumer", "engine", "gateway"))):
                run.stack.kill(victim)
