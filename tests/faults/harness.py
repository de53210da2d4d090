"""Runs scenarios from start to verdict: one, or several that want the same processes, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.faults.brokers import Kafka, Valkey
from tests.faults.checker.check import check
from tests.faults.checker.judge import Violation
from tests.faults.checker.record import RunRecord, write_record
from tests.faults.measures import Figures, figures
from tests.faults.proxy import Proxy
from tests.faults.run import Run
from tests.faults.scenarios.acts import until, write_clock
from tests.faults.scenarios.scenario import STEP_MS, Scenario
from tests.faults.stack import Stack, running_stack

INSIDE = Path(__file__).parent / "inside"
LEASES_S = {"redis": 1.0, "kafka": 1.5}
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What a run saw, for people. `load_s`: how long its load took; `settled_s`: until all was settled."""

    scenario: str
    broker: str
    seed: int
    figures: Figures
    notes: Sequence[str]
    load_s: float
    settled_s: float

    def __str__(self) -> str:
        notes = "".join(f"; {note}" for note in self.notes)
        return (
            f"{self.scenario} on {self.broker}, seed {self.seed}: {self.figures}{notes}; "
            f"load for {self.load_s:.1f} s, settled in {self.settled_s:.1f} s"
        )


async def run_scenario(
    scenario: Scenario, server: Valkey | Kafka, folder: Path, seed: int, rounds: int = 1
) -> Report:
    """One, on processes of its own."""
    [report] = await run_together([scenario], server, folder, seed, rounds)
    return report


async def run_together(
    scenarios: Sequence[Scenario], server: Valkey | Kafka, folder: Path, seed: int, rounds: int = 1
) -> list[Report]:
    """Scenarios of one shape, one after the other on the same processes, each with a verdict over all that
    was recorded so far. Raises AssertionError with the violations; the record and the log of the processes
    stay in `folder`."""
    await asyncio.to_thread(server.start)  # a run that failed may have left it dead
    first, rng = scenarios[0], random.Random(f"{seed} {scenarios[0].name} {server.kind}")
    assert all(scenario.shape == first.shape for scenario in scenarios)
    at = _At(server, f"f{uuid.uuid4().hex[:10]}", LEASES_S[server.kind], seed, rounds, folder)
    async with (
        _proxy_for(first, server, rng) as proxy,
        _stack_for(first, at, proxy) as stack,
    ):
        try:
            reports = [await _run_one(scenario, at, stack, proxy) for scenario in scenarios]
            await asyncio.to_thread(stack.drain)
            found = await asyncio.to_thread(check, at.record, server.url, at.prefix)
            assert not found, _tell("the drain", at, found, stack)
        finally:
            write_record(at.record, folder / "record.json")
    return reports


@dataclass(frozen=True, slots=True)
class _At:
    """What the runs on one stack share."""

    server: Valkey | Kafka
    prefix: str
    lease_s: float
    seed: int
    rounds: int
    folder: Path
    record: RunRecord = field(default_factory=RunRecord)


async def _run_one(scenario: Scenario, at: _At, stack: Stack, proxy: Proxy | None) -> Report:
    rng = random.Random(f"{at.seed} {scenario.name} {at.server.kind}")
    run = Run(
        *(scenario.name, stack, at.server, at.prefix, rng, at.lease_s, STEP_MS / 1000, at.record),
        proxy=proxy,
        rounds=at.rounds,
        breaks=scenario.breaks,
    )
    await until(lambda: len(stack.pids("consumer")) == scenario.consumers, "all consumers", 60)
    try:
        times = [time.monotonic()]
        await scenario.inject(run)
        times.append(time.monotonic())
        found = await run.verdict()
        times.append(time.monotonic())
    finally:
        run.close()
    assert not found, _tell(scenario.name, at, found, stack)
    load_s, settled_s = (after - before for before, after in pairwise(times))
    seen = figures(run.requests, run.transcripts(), run.kills(), run.step_s)
    return Report(scenario.name, at.server.kind, at.seed, seen, run.notes, load_s, settled_s)


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
async def _stack_for(scenario: Scenario, at: _At, proxy: Proxy | None) -> AsyncIterator[Stack]:
    """Starts and ends in a thread: the proxy, through which a stack comes up, lives on our loop."""
    sim = ("--engine", "sim", "--sim-step-ms", str(STEP_MS))
    first = ("--sim-first-token-ms", str(scenario.first_token_ms))
    url = at.server.url if proxy is None else at.server.through(proxy.port)
    stack = running_stack(
        at.folder,
        *("--broker", url, "--prefix", at.prefix, *sim, *first, *scenario.options),
        consumers=scenario.consumers,
        lease_s=at.lease_s,
        environment=_inside(scenario, at.folder),
    )
    started = await asyncio.to_thread(stack.__enter__)
    try:
        yield started
    finally:
        await asyncio.to_thread(stack.__exit__, None, None, None)


def _inside(scenario: Scenario, folder: Path) -> dict[str, str]:
    """Variables that make consumers different, see `inside`."""
    variables = {}
    if scenario.clock_s is not None:
        variables["HEADRACE_TEST_CLOCK"] = str(write_clock(folder / "clock", scenario.clock_s))
    if scenario.deadly:
        variables["HEADRACE_TEST_DEADLY"] = scenario.deadly
    return {"PYTHONPATH": str(INSIDE), **variables} if variables else {}


def _tell(where: str, at: _At, found: list[Violation], stack: Stack) -> str:
    lines = [f"{where}, seed {at.seed}: {len(found)} violations; see {at.folder}/record.json"]
    lines += map(str, found[:_MOST_SHOWN])
    return "\n".join([*lines, "the processes said:", stack.log()[-4000:]])
