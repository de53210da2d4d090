"""A million queued requests, and the memory of gateway and consumer: it must not grow with the queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_bench.ours import SIM, completion, connected, service
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.shared.processes import rss_mib
from benchmarks.shared.report import CannotRun, Row, Target, missing
from headrace.broker.contract import Broker
from headrace.broker.message import Lane
from headrace.producer.backoff import RetryPolicy
from headrace.producer.client import Client
from headrace.producer.client_errors import ClientError

NAME: Final = "memory"
_MOST_MIB: Final = 50
# The engine is slow, so that the queue stays as long as it is.
_ENGINE: Final = (*SIM, "--sim-step-ms", "200", "--sim-first-token-ms", "200", "--max-batch-size", "4")


def run(settings: BenchSettings) -> Iterator[Row]:
    for kind in settings.brokers:
        try:
            yield from _measure(settings, kind)
        except CannotRun as error:
            yield missing(NAME, f"gateway and consumer above idle, {kind}", error)


def _measure(settings: BenchSettings, kind: BrokerKind) -> Iterator[Row]:
    work, count = settings.folder(f"{NAME}-{kind}"), 20_000 if settings.quick else 1_000_000
    with (
        running_server(kind, work, settings.fsync) as server,
        service("consumer", _ENGINE, server.url, work) as consumer,
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
    ):
        pids = {"consumer": consumer.process.pid, "gateway": gateway.process.pid}
        asyncio.run(_submit(gateway.told["grpc"], 20))
        idle = {name: rss_mib(pid) for name, pid in pids.items()}
        most = asyncio.run(_fill(server.url, gateway.told["grpc"], count, pids))
        for name in pids:
            grown, note = most[name] - idle[name], f"{idle[name]:.0f} MiB idle, {count:,} requests queued"
            yield Row(NAME, f"{name} above idle, {kind}", grown, "MiB", Target("at most", _MOST_MIB), note)


async def _fill(url: str, grpc_target: str, count: int, pids: dict[str, int]) -> dict[str, float]:
    """Queues the requests, a part of them through the gateway; the most memory seen on the way."""
    broker: Broker = await connected(url)
    most = dict.fromkeys(pids, 0.0)
    for start in range(0, count, 10_000):
        for first in range(start, min(count, start + 10_000), 500):
            await broker.publish(
                [completion(n, broker.place(Lane.BATCH), tokens=100) for n in range(first, first + 500)]
            )
        await _submit(grpc_target, 20)
        most = {name: max(most[name], rss_mib(pid)) for name, pid in pids.items()}
    end = time.monotonic() + 3  # what reacts late to the backlog has its time
    while time.monotonic() < end:
        most = {name: max(most[name], rss_mib(pid)) for name, pid in pids.items()}
        await asyncio.sleep(0.1)
    await broker.close()
    return most


async def _submit(target: str, count: int) -> None:
    """A gateway that takes no more, as it should at some length of the queue, is no failure here."""
    async with Client(target, policy=RetryPolicy(patience_s=0.2)) as client:
        with contextlib.suppress(ClientError):
            for _ in range(count):
                await client.submit("no-op", lane=Lane.BATCH)
