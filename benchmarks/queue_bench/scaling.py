"""Two consumers on one backlog against one: how much of the second one's work is lost to the queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_bench.ours import SIM, OurContestant, connected, service
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.shared.processes import held
from benchmarks.shared.report import CannotRun, Row, Target, missing

NAME: Final = "scaling"
_STEP_MS, _TOKENS, _BATCH = 20, 10, 8
_ENGINE: Final = (
    *SIM,
    *("--sim-step-ms", str(_STEP_MS), "--sim-first-token-ms", str(_STEP_MS)),
    *("--max-batch-size", str(_BATCH)),
)


def run(settings: BenchSettings) -> Iterator[Row]:
    """The engines wait rather than compute, so that both find a core."""
    for kind in settings.brokers:
        what = f"two consumers ÷ one, {kind}"
        try:
            one, two = (_seconds(settings, kind, consumers) for consumers in (1, 2))
        except CannotRun as error:
            yield missing(NAME, what, error)
            continue
        yield Row(NAME, what, two / one, "×", Target("at most", 0.55), f"{one:.1f} s and {two:.1f} s")


def _seconds(settings: BenchSettings, kind: BrokerKind, consumers: int) -> float:
    """From the release of consumers that are up to the last result of the backlog."""
    work = settings.folder(f"{NAME}-{kind}-{consumers}")
    count = 160 if settings.quick else 640
    with (
        contextlib.ExitStack() as stack,
        running_server(kind, work, settings.fsync) as server,
        asyncio.Runner() as runner,
    ):
        services = [
            stack.enter_context(service("consumer", _ENGINE, server.url, work)) for _ in range(consumers)
        ]
        broker = runner.run(connected(server.url))
        contestant = OurContestant(runner, broker, services[0], tokens=_TOKENS)
        contestant.publish(_BATCH)
        contestant.collect()
        with held([pid for each in services for pid in each.pids]):
            contestant.publish(count)
            began = time.perf_counter()
        contestant.collect()
        seconds = time.perf_counter() - began
        runner.run(broker.close())
        return seconds
