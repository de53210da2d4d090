"""The queue tax: what a real engine behind broker and gateway reaches of its own offline speed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
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


def run(settings: BenchSettings) -> Iterator[Row]:
    """The same requests, all at once, greedy and of set length; each is streamed to a gRPC client. Offline
    runs before and after: the faster one counts."""
    count, tokens = (16, 16) if settings.quick else (96, 64)
    try:
        offline = _offline(settings, count, tokens)
        online = {kind: _online(settings, kind, count, tokens) for kind in settings.brokers}
        offline = min(offline, _offline(settings, count, tokens))
    except CannotRun as error:
        yield missing(NAME, "the engine behind the queue ÷ offline", error)
        return
    made = count * tokens
    yield Row(
        NAME, "offline", made / offline, "tokens/s", note=f"{threads()} threads, {count} × {tokens} tokens"
    )
    for kind, found in online.items():
        speed = f"{made / found.seconds:,.0f} tokens/s, deltas streamed over gRPC"
        share = 100 * offline / found.seconds
        yield Row(NAME, f"behind {kind} ÷ offline", share, "%", Target("at least", 97), speed)
        note = ", ".join(f"{name} {1e6 * spent / made:,.0f}" for name, spent in found.cpu.items())
        beside = sum(spent for name, spent in found.cpu.items() if name != "engine")
        what = f"CPU beside the engine, {kind}"
        yield Row(NAME, what, 1e6 * beside / made, "µs/token", note=f"µs of each: {note}")


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
