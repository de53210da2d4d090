"""SIGKILL of a consumer in the middle of its streams: how long until each reader sees the next token."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.queue_bench.ours import Service, service, stamping_consumer
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.queue_bench.stamps import made_at
from benchmarks.shared.figures import median, percentile
from benchmarks.shared.report import CannotRun, Row, Target, missing
from headrace.broker.lines.request import Sampling
from headrace.producer.client import Client

NAME: Final = "kill"
_LEASE_MS, _STEP_MS, _STREAMS = 2_000, 20.0, 8
_SLACK_S: Final = 2.0


@dataclass(slots=True)
class _Reader:
    """What one reader saw. Times are monotonic seconds; `stamps` are those of the engines."""

    owner: str = ""  # the consumer that runs it
    stamps: list[float] = field(default_factory=list)
    seen_at: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Interruption:
    seconds: float
    recomputed: float


def run(settings: BenchSettings) -> Iterator[Row]:
    for kind in settings.brokers:
        what = f"SIGKILL to next visible token, {kind}"
        try:
            found = _measure(settings, kind)
        except CannotRun as error:
            yield missing(NAME, what, error)
            continue
        seconds = [each.seconds for each in found]
        bound, note = Target("at most", _LEASE_MS / 1000 + _SLACK_S), f"lease {_LEASE_MS / 1000:g} s"
        yield Row(NAME, f"{what}, p50", median(seconds), "s", note=f"{len(found)} interrupted requests")
        yield Row(NAME, f"{what}, p95", percentile(seconds, 0.95), "s", bound, note)
        recomputed = sum(each.recomputed for each in found) / len(found)
        note = "made, by the engine's pace, before the kill, and in no log"
        yield Row(NAME, f"tokens recomputed per interrupted request, {kind}", recomputed, "", note=note)


def _measure(settings: BenchSettings, kind: BrokerKind) -> list[_Interruption]:
    work, found = settings.folder(f"{NAME}-{kind}"), list[_Interruption]()
    with (
        running_server(kind, work, settings.fsync) as server,
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
        contextlib.ExitStack() as stack,
    ):
        consumers = [_consumer(stack, server.url, work) for _ in range(2)]
        for _ in range(1 if settings.quick else 6):
            found += asyncio.run(_round(gateway.told["grpc"], consumers))
            consumers = [each for each in consumers if each.process.poll() is None]
            consumers.append(_consumer(stack, server.url, work))
    if not found:
        raise CannotRun("no request was interrupted")
    return found


def _consumer(stack: contextlib.ExitStack, url: str, work: Path) -> Service:
    return stack.enter_context(stamping_consumer(_STEP_MS, _LEASE_MS, url, work))


async def _round(target: str, consumers: list[Service]) -> list[_Interruption]:
    """Streams begin, one consumer is killed, and each of its streams is followed until it goes on."""
    readers = [_Reader() for _ in range(_STREAMS)]
    async with Client(target) as client:
        tasks = [asyncio.create_task(_follow(client, reader)) for reader in readers]
        await asyncio.sleep(1.5)
        victim = _busiest(readers, consumers)
        hit = [reader for reader in readers if f"-{victim.told['consumer']}-" in reader.owner]
        os.kill(victim.told["consumer"], signal.SIGKILL)
        killed_at = time.monotonic()
        await asyncio.gather(*tasks)
    return [_judge(reader, killed_at) for reader in hit]


def _busiest(readers: list[_Reader], consumers: list[Service]) -> Service:
    """A consumer's name holds its process id."""
    return max(consumers, key=lambda c: sum(f"-{c.told['consumer']}-" in r.owner for r in readers))


async def _follow(client: Client, reader: _Reader) -> None:
    seconds = 1.5 + 2 * _LEASE_MS / 1000 + _SLACK_S
    sampling = Sampling(max_tokens=round(seconds * 1000 / _STEP_MS), ignore_eos=True)
    async for event in client.generate("time", sampling=sampling):
        if event.WhichOneof("kind") == "started":
            reader.owner = event.started.consumer
        now = time.monotonic_ns()
        for token in event.delta.token_ids:
            reader.stamps.append(made_at(token, now))
            reader.seen_at.append(now / 1e9)


def _judge(reader: _Reader, killed_at: float) -> _Interruption:
    """The first token that the next owner made; its engine's stamp is later than the kill."""
    first = next((n for n, stamp in enumerate(reader.stamps) if stamp > killed_at), None)
    if first is None:
        raise CannotRun("a killed consumer's stream did not go on")
    made = max(0.0, killed_at - reader.stamps[first - 1]) * 1000 / _STEP_MS if first else 0.0
    return _Interruption(reader.seen_at[first] - killed_at, float(int(made)))
