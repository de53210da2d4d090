"""The queue tax: what a real engine behind broker and gateway reaches of its own offline speed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_bench.ours import ROOT, service
from benchmarks.queue_bench.real_engine import engine_arguments, prompts, threads
from benchmarks.queue_bench.report import CannotRun, Row, Target, missing
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from headrace.broker.lines.request import Sampling
from headrace.broker.message import Lane
from headrace.producer.client import Client

NAME: Final = "tax"


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
    for kind, seconds in online.items():
        share, note = 100 * offline / seconds, f"{made / seconds:,.0f} tokens/s, deltas streamed over gRPC"
        yield Row(NAME, f"behind {kind} ÷ offline", share, "%", Target("at least", 97), note)


def _offline(settings: BenchSettings, count: int, tokens: int) -> float:
    module = "benchmarks.queue_bench.real_engine"
    argv = [sys.executable, "-m", module, settings.model, str(count), str(tokens)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode != 0:
        raise CannotRun(f"the engine does not run offline: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout)["seconds"])


def _online(settings: BenchSettings, kind: BrokerKind, count: int, tokens: int) -> float:
    work = settings.folder(f"{NAME}-{kind}")
    with (
        running_server(kind, work, settings.fsync) as server,
        service("consumer", engine_arguments(settings.model), server.url, work),
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
    ):
        return asyncio.run(_stream(gateway.told["grpc"], count, tokens))


async def _stream(target: str, count: int, tokens: int) -> float:
    """Seconds from the first request's departure to the last token's arrival."""
    async with Client(target) as client:
        await asyncio.gather(*(_follow(client, prompt, tokens) for prompt in prompts(4, first=10_000)))
        began = time.perf_counter()
        await asyncio.gather(*(_follow(client, prompt, tokens) for prompt in prompts(count)))
        return time.perf_counter() - began


async def _follow(client: Client, prompt: str, tokens: int) -> None:
    sampling, made = Sampling(max_tokens=tokens, ignore_eos=True, temperature=0), 0
    async for event in client.generate(prompt, sampling=sampling, lane=Lane.STANDARD):
        made += len(event.delta.token_ids)
    if made != tokens:
        raise CannotRun(f"an answer has {made} of {tokens} tokens")
