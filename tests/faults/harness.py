"""Runs one scenario from start to verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.faults.brokers import Kafka, Valkey
from tests.faults.checker.judge import Violation
from tests.faults.checker.record import write_record
from tests.faults.measures import Figures, figures
from tests.faults.proxy import Proxy
from tests.faults.run import Run
from tests.faults.scenarios.scenario import STEP_MS, Scenario
from tests.faults.stack import Stack, running_stack

CLOCK = Path(__file__).parent / "clock"
LEASES_S = {"redis": 1.0, "kafka": 1.5}
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What a run saw, for people. `phases`: seconds to come up, under load, until settled, to drain."""

    scenario: str
    broker: str
    seed: int
    figures: Figures
    notes: str
    phases: tuple[float, float, float, float]

    def __str__(self) -> str:
        up, load, settled, drain = self.phases
        return (
            f"{self.scenario} on {self.broker}, seed {self.seed}: {self.figures}{self.notes}; "
            f"up in {up:.1f} s, load {load:.1f} s, settled in {settled:.1f} s, drained in {drain:.1f} s"
        )


async def run_scenario(
    scenario: Scenario, server: Valkey | Kafka, folder: Path, seed: int, rounds: int = 1
) -> Report:
    """Raises AssertionError with all violations; the record and the log of the processes stay in `folder`."""
    await asyncio.to_thread(server.start)  # a run that failed may have left it dead
    rng = random.Random(f"{seed} {scenario.name} {server.kind}")
    prefix, lease_s = f"f{uuid.uuid4().hex[:10]}", LEASES_S[server.kind]
    began = time.monotonic()
    async with (
        _proxy_for(scenario, server, rng) as proxy,
        _stack_for(scenario, server, proxy, folder, prefix, lease_s) as stack,
    ):
        run = Run(
            *(stack, server, prefix, rng, lease_s, STEP_MS / 1000, proxy, rounds),
            breaks=scenario.breaks,
        )
        times = [began, time.monotonic()]
        try:
            await scenario.inject(run)
            times.append(time.monotonic())
            found = await run.verdict()
            times.append(time.monotonic())
            await asyncio.to_thread(stack.drain)
            times.append(time.monotonic())
            found = found or await run.verdict(patience_s=5)
            write_record(run.record, folder / "record.json")
        finally:
            run.close()
        assert not found, _tell(scenario, seed, found, stack, folder)
        return _report(scenario, run, seed, times)


@contextlib.asynccontextmanager
async def _proxy_for(
    scenario: Scenario, server: Valkey | Kafka, rng: random.Random
) -> AsyncIterator[Proxy | None]:
    if not scenario.proxied:
        yield None
        return
    async with Proxy(server.address, rng, port=server.proxy_port) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def _stack_for(
    scenario: Scenario,
    server: Valkey | Kafka,
    proxy: Proxy | None,
    folder: Path,
    prefix: str,
    lease_s: float,
) -> AsyncIterator[Stack]:
    """Starts and ends in a thread: the proxy, through which a stack comes up, lives on our loop."""
    sim = ("--engine", "sim", "--sim-step-ms", str(STEP_MS))
    first = ("--sim-first-token-ms", str(scenario.first_token_ms))
    url = server.url if proxy is None else server.through(proxy.port)
    clock = {"PYTHONPATH": str(CLOCK), "HEADRACE_TEST_CLOCK": str(folder / "clock")}
    stack = running_stack(
        folder,
        *("--broker", url, "--prefix", prefix, *sim, *first, *scenario.options),
        consumers=scenario.consumers,
        lease_s=lease_s,
        environment=clock if scenario.clock else {},
    )
    started = await asyncio.to_thread(stack.__enter__)
    try:
        yield started
    finally:
        await asyncio.to_thread(stack.__exit__, None, None, None)


def _tell(scenario: Scenario, seed: int, found: list[Violation], stack: Stack, folder: Path) -> str:
    lines = [f"{scenario.name}, seed {seed}: {len(found)} violations; see {folder}/record.json"]
    lines += map(str, found[:_MOST_SHOWN])
    return "\n".join([*lines, "the processes said:", stack.log()[-4000:]])


def _report(scenario: Scenario, run: Run, seed: int, times: Sequence[float]) -> Report:
    found = figures(run.record, run.stack.kills, run.step_s)
    up, load, settled, drain = (after - before for before, after in pairwise(times))
    notes = "".join(f"; {note}" for note in run.notes)
    return Report(scenario.name, run.server.kind, seed, found, notes, (up, load, settled, drain))
