"""What several scenarios do: choose a victim, wait for something, start a process beside the others."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.faults.run import Run
from tests.faults.scenarios.scenario import FIRST_TOKEN_MS, STEP_MS
from tests.faults.stack import alive, pid_of


def victim_of(run: Run, kind: str) -> int | None:
    victims = run.stack.pids(kind)
    return run.rng.choice(victims) if victims else None


def busiest(run: Run) -> int | None:
    """The consumer with the most answers under way that anybody watches: one pull can take all there are."""
    owners = Counter(pid_of(reader.owner) for reader in run.readers if reader.owner and not reader.ended)
    alive_now = [pid for pid, _ in owners.most_common() if pid is not None and alive(pid)]
    return alive_now[0] if alive_now else victim_of(run, "consumer")


async def until(holds: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    """Waits for something that another process does."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not holds():
        assert loop.time() < end, f"waited in vain for {what}"
        await asyncio.sleep(0.05)


def write_clock(file: Path, offset_s: int) -> Path:
    """By how much the wall clock is wrong for those whom the file was given to, from now on."""
    file.with_suffix(".new").write_text(str(offset_s))
    return file.with_suffix(".new").rename(file)


def start_consumer(
    run: Run, *options: str, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    return run.stack.start_beside(
        *("consumer", "--broker", run.stack.broker, "--prefix", run.prefix, "--lease", str(run.lease_s)),
        *("--grace", "0", "--engine", "sim", "--sim-step-ms", str(STEP_MS)),
        *("--sim-first-token-ms", str(FIRST_TOKEN_MS), *options),
        environment=environment,
    )
