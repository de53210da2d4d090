"""The queue tax: what a real engine behind broker and gateway reaches of its own offline speed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.queue_bench.ours import ROOT, service
from benchmarks.queue_bench.real_engine import engine_arguments, prompts, threads
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.shared.processes import cpu_seconds
from benchmarks.shared.report import CannotRun, Row, Target, missing
from headrace.broker.lines.request import Sampling
from headrace.broker.message import Lane
from headrace.producer.client import Client

NAME: Final = "tax"


@dataclass(frozen=True, slots=True)
class _Online:
    """`seconds`: from the first request's departure to the last token's arrival; `cpu`: seconds of CPU
    time of each process meanwhile."""

    seconds: float
    cpu: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Lap:
    """One run behind the queue, and the `offline` seconds of the same requests: the mean of a run before and
    a run after it, since a machine that others use is not as fast now as a minute ago."""

    offline: float
    online: _Online

    @property
    def share(self) -> float:
        return 100 * self.offline / self.online.seconds


def run(settings: BenchSettings) -> Iterator[Row]:
    """The same requests, all at once, greedy and of set length; each is streamed to a gRPC client."""
    count, tokens, rounds = (16, 16, 1) if settings.quick else (48, 64, 3)
    for kind in settings.brokers:
        try:
            laps = _alternate(settings, kind, count, tokens, rounds)
        except CannotRun as error:
            yield missing(NAME, f"behind {kind} ÷ offline", error)
            continue
        yield from _rows(kind, laps, count * tokens)


def _alternate(settings: BenchSettings, kind: BrokerKind, count: int, tokens: int, rounds: int) -> list[_Lap]:
    laps: list[_Lap] = []
    before = _offline(settings, count, tokens)
    for _ in range(rounds):
        online = _online(settings, kind, count, tokens)
        after = _offline(settings, count, tokens)
        laps.append(_Lap((before + after) / 2, online))
        before = after
    return laps


def _rows(kind: BrokerKind, laps: Sequence[_Lap], made: int) -> Iterator[Row]:
    middle = sorted(laps, key=lambda lap: lap.share)[len(laps) // 2]
    offline, online = (made / seconds for seconds in (middle.offline, middle.online.seconds))
    note = f"{online:,.0f} of {offline:,.0f} tokens/s, {threads()} threads, deltas streamed over gRPC; "
    note += f"{min(lap.share for lap in laps):.1f} to {max(lap.share for lap in laps):.1f}"
    yield Row(NAME, f"behind {kind} ÷ offline", middle.share, "%", Target("at least", 97), note)
    cpu = middle.online.cpu
    beside = sum(spent for name, spent in cpu.items() if name != "engine")
    note = "µs of each: " + ", ".join(f"{name} {1e6 * spent / made:,.0f}" for name, spent in cpu.items())
    yield Row(NAME, f"CPU beside the engine, {kind}", 1e6 * beside / made, "µs/token", note=note)


def _offline(settings: BenchSettings, count: int, tokens: int) -> float:
    module = "benchmarks.queue_bench.real_engine"
    argv = [sys.executable, "-m", module, settings.model, str(count), str(tokens)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise CannotRun(f"the engine does not run offline: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout)["seconds"])


def _online(settings: BenchSettings, kind: BrokerKind, count: int, tokens: int) -> _Online:
    work = settings.folder(f"{NAME}-{kind}")
    with (
        running_server(kind, work, settings.fsync) as server,
        service("consumer", engine_arguments(settings.model), server.url, work) as consumer,
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
    ):
        pids = {
            "engine": consumer.pids[1:],
            "consumer": consumer.pids[:1],
            "gateway": gateway.pids,
            "broker": [server.pid],
            "client": [os.getpid()],
        }
        return asyncio.run(_measure(gateway.told["grpc"], count, tokens, pids))


async def _measure(target: str, count: int, tokens: int, pids: dict[str, list[int]]) -> _Online:
    async with Client(target) as client:
        await asyncio.gather(*(_follow(client, prompt, tokens) for prompt in prompts(4, first=10_000)))
        before, began = {name: cpu_seconds(each) for name, each in pids.items()}, time.perf_counter()
        await asyncio.gather(*(_follow(client, prompt, tokens) for prompt in prompts(count)))
        seconds = time.perf_counter() - began
    return _Online(seconds, {name: cpu_seconds(each) - before[name] for name, each in pids.items()})


async def _follow(client: Client, prompt: str, tokens: int) -> None:
    sampling, made = Sampling(max_tokens=tokens, ignore_eos=True, temperature=0), 0
    async for event in client.generate(prompt, sampling=sampling, lane=Lane.STANDARD):
        made += len(event.delta.token_ids)
    if made != tokens:
        raise CannotRun(f"an answer has {made} of {tokens} tokens")
