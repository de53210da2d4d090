"""Work changes hands while its former owner lives: frozen, replaced under its name, joined, told to go."""

from __future__ import annotations

import asyncio
import functools
import subprocess

from tests.faults.run import Run
from tests.faults.scenarios.acts import busiest, start_consumer, until
from tests.faults.stack import pid_of


async def consumers_frozen(run: Run) -> None:
    """Past its lease and awake again: what it still says is void, its settlements are refused."""
    async with run.load(streams=8):
        for _ in range(2 * run.rounds):
            await asyncio.sleep(0.6)
            if victim := busiest(run):
                run.stack.freeze(victim)
                await asyncio.sleep(2 * run.lease_s + run.rng.uniform(0, 0.5))
                run.stack.thaw(victim)
    resumed = sum(event.kept > 0 for reader in run.readers for event in reader.shown)
    assert resumed, "no answer was taken over: the freeze proved nothing"


async def static_twin(run: Run) -> None:
    """A pod is frozen and replaced under the same name: the new one goes on in its place. When the old one
    wakes, the group fences one of them (the old one, unless its session was over and it joined anew); that
    one shows nothing any more and ends non-zero, and the other one serves."""
    named = ("--broker-option", "group_instance_id=pod-1")
    ready = run.stack.folder / "pod.json"
    first = start_consumer(run, *named, "--ready-file", str(ready))
    await until(ready.exists, "the first pod", 60)
    async with run.load(streams=8):
        await until(lambda: any(pid_of(r.owner) == first.pid for r in run.readers), "work for the first pod")
        run.stack.freeze(first.pid)
        second = start_consumer(run, *named)
        await asyncio.sleep(2 * run.lease_s + 3)
        run.stack.thaw(first.pid)
        await until(lambda: _one_ended(first, second), "a fence")
        await asyncio.sleep(1)
    statuses = [pod.returncode for pod in (first, second) if pod.poll() is not None]
    assert len(statuses) == 1, "both pods ended, where one was due"
    assert statuses[0] != 0, "the fenced pod ended as if all was well"


def _one_ended(first: subprocess.Popen[bytes], second: subprocess.Popen[bytes]) -> bool:
    return first.poll() is not None or second.poll() is not None


async def consumers_come_and_go(run: Run) -> None:
    """A third one joins under load, and leaves in order: what is not moved is not disturbed, and of what is
    moved no token is lost."""
    async with run.load(streams=8):
        await asyncio.sleep(0.5)
        for number in range(run.rounds):
            ready = run.stack.folder / f"third-{number}.json"
            third = start_consumer(run, "--ready-file", str(ready))
            await until(ready.exists, "the third consumer", 60)
            await until(functools.partial(_has_worked, run, third.pid), "work for the third consumer")
            await asyncio.sleep(0.5)
            third.terminate()
            status = await asyncio.to_thread(third.wait, 20)
            assert status == 0, f"a drain that ended with status {status}"
    assert not any(event.kind == "restarted" for reader in run.readers for event in reader.shown)


def _has_worked(run: Run, pid: int) -> bool:
    """Whether a reader was shown that this consumer began or took over its answer."""
    return any(pid_of(event.consumer) == pid for reader in run.readers for event in reader.shown)
