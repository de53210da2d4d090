"""What the way from the engine to a gRPC client adds to a token, at 500 events a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_bench.ours import service, stamping_consumer
from benchmarks.queue_bench.servers import running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.queue_bench.stamps import made_at
from benchmarks.shared.figures import percentile
from benchmarks.shared.report import CannotRun, Row, Target, missing
from headrace.broker.lines.request import Sampling
from headrace.producer.client import Client

NAME: Final = "latency"
_STREAMS, _STEP_MS = 10, 20.0
_TARGETS: Final[dict[tuple[BrokerKind, int], Target]] = {
    ("redis", 50): Target("at most", 3),
    ("redis", 99): Target("at most", 15),
    ("kafka", 50): Target("at most", 8),
}


def run(settings: BenchSettings) -> Iterator[Row]:
    """Ten streams of fifty tokens a second, in step as an engine's batch is. The clock runs from the end of
    the engine's step to the moment when the client's code has the token: pipe, log, gateway and gRPC."""
    for kind in settings.brokers:
        what = f"engine to gRPC client, {kind}"
        try:
            delays = _measure(settings, kind)
        except CannotRun as error:
            yield missing(NAME, what, error)
            continue
        for share in (50, 95, 99):
            value = percentile(delays, share / 100)
            note = f"{len(delays):,} tokens"
            yield Row(NAME, f"{what}, p{share}", value, "ms", _TARGETS.get((kind, share)), note)


def _measure(settings: BenchSettings, kind: BrokerKind) -> list[float]:
    work, tokens = settings.folder(f"{NAME}-{kind}"), 250 if settings.quick else 1500
    with (
        running_server(kind, work, settings.fsync) as server,
        stamping_consumer(_STEP_MS, 30_000, server.url, work),
        service("gateway", ("--grpc-port", "0"), server.url, work) as gateway,
    ):
        return asyncio.run(_read(gateway.told["grpc"], tokens))


async def _read(target: str, tokens: int) -> list[float]:
    async with Client(target) as client:
        streams = [_follow(client, tokens) for _ in range(_STREAMS)]
        return [delay for delays in await asyncio.gather(*streams) for delay in delays]


async def _follow(client: Client, tokens: int) -> list[float]:
    """Milliseconds of each token; the first fifty of a stream warm it up."""
    delays: list[float] = []
    sampling = Sampling(max_tokens=tokens, ignore_eos=True)
    async for event in client.generate("time", sampling=sampling):
        now = time.monotonic_ns()
        delays += [(now / 1e9 - made_at(token, now)) * 1000 for token in event.delta.token_ids]
    if len(delays) != tokens:
        raise CannotRun(f"{len(delays)} of {tokens} tokens arrived")
    return delays[50:]
