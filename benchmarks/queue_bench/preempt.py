"""An interactive request's time to first token, with and without a steady backlog of batch work."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_bench.ours import completion, connected, service
from benchmarks.queue_bench.real_engine import engine_arguments, prompts
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.shared.figures import median
from benchmarks.shared.report import CannotRun, Row, Target, missing
from headrace.broker.lines.request import Sampling
from headrace.broker.message import Lane
from headrace.producer.client import Client

NAME: Final = "preempt"
_CHUNK_TOKENS: Final = 512  # the engine's default step budget
_BACKLOG: Final = 400


def run(settings: BenchSettings) -> Iterator[Row]:
    for kind in settings.brokers:
        what = f"interactive TTFT under a batch backlog, {kind}"
        try:
            yield from _measure(settings, kind, what)
        except CannotRun as error:
            yield missing(NAME, what, error)


def _measure(settings: BenchSettings, kind: BrokerKind, what: str) -> Iterator[Row]:
    work, rounds = settings.folder(f"{NAME}-{kind}"), 5 if settings.quick else 25
    with (
        running_server(kind, work, settings.fsync) as server,
        service("consumer", engine_arguments(settings.model), server.url, work),
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
    ):
        found = asyncio.run(_compare(server.url, gateway.told["grpc"], rounds))
    idle, chunk, busy = found
    yield Row(NAME, f"interactive TTFT when idle, {kind}", idle, "ms", note=f"one chunk takes {chunk:.0f} ms")
    note = f"1.5 × idle + one chunk; medians of {rounds}"
    yield Row(NAME, what, busy, "ms", Target("at most", round(1.5 * idle + chunk, 1)), note)


async def _compare(url: str, target: str, rounds: int) -> tuple[float, float, float]:
    """Medians in ms: TTFT when idle, the time of one full chunk, TTFT with a backlog."""
    broker = await connected(url)
    long_prompt = " ".join(["water"] * (_CHUNK_TOKENS - 12))  # with its number and the template: one chunk
    async with Client(target) as client, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(broker.close)
        await _first_token(client, prompts(1)[0])
        idle = [await _first_token(client, prompt) for prompt in prompts(rounds, first=100)]
        chunk = [await _first_token(client, f"{n} {long_prompt}") for n in range(3)]
        backlog = prompts(_BACKLOG, first=1000)
        await broker.publish(
            [
                completion(number, broker.place(Lane.BATCH), tokens=128, prompt=text)
                for number, text in enumerate(backlog)
            ]
        )
        await asyncio.sleep(3)  # until the engine is full
        busy = [await _first_token(client, prompt) for prompt in prompts(rounds, first=5000)]
    return median(idle), max(0.0, median(chunk) - median(idle)), median(busy)


async def _first_token(client: Client, prompt: str) -> float:
    """Milliseconds until the first token; the answer has eight, so that the engine is busy for a while."""
    began, first = time.perf_counter(), 0.0
    sampling = Sampling(max_tokens=8, ignore_eos=True, temperature=0)
    async for event in client.generate(prompt, sampling=sampling, lane=Lane.INTERACTIVE):
        if event.delta.token_ids and not first:
            first = time.perf_counter() - began
    return first * 1000
