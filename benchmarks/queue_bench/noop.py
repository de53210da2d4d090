"""No-op requests per second with one worker process: ours on each broker, the peers on the same Valkey."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.queue_bench.noop_run import Speed, measure
from benchmarks.queue_bench.ours import NO_OP, OurContestant, connected, service
from benchmarks.queue_bench.peer_list import PEERS, Peer
from benchmarks.queue_bench.peer_run import running_peer
from benchmarks.queue_bench.servers import rabbitmq, running_server
from benchmarks.queue_bench.settings import BenchSettings, BrokerKind
from benchmarks.shared.environments import environment, versions
from benchmarks.shared.figures import best
from benchmarks.shared.report import CannotRun, Row, Target, missing

NAME: Final = "noop"
_UNIT: Final = "requests/s"


def run(settings: BenchSettings) -> Iterator[Row]:
    """Ours before and after the peers: on a machine that others use, the worse of the two counts."""
    ours: dict[BrokerKind, Speed] = {}
    peers: dict[Peer, Speed] = {}
    for kind in settings.brokers:
        yield from _ours(settings, kind, ours)
    for peer in PEERS:
        if peer.name in settings.peers:
            yield from _peer(settings, peer, peers)
    if "redis" in ours and peers:
        yield from _ours(settings, "redis", ours)
    yield from _comparisons(ours, peers)


def _ours(settings: BenchSettings, kind: BrokerKind, speeds: dict[BrokerKind, Speed]) -> Iterator[Row]:
    what = f"headrace on {kind}"
    try:
        speed = _measure_ours(settings, kind)
    except (CannotRun, TimeoutError) as error:
        yield missing(NAME, what, error)
        return
    if kind not in speeds or speed.backlog < speeds[kind].backlog:
        speeds[kind] = speed
    yield _row(what, speed, "leases renewed, acks late, atomic with the result; each event in a log")
    yield Row(NAME, f"CPU of consumer and engine, {kind}", speed.cpu_per_1000, "s per 1,000 requests")


def _measure_ours(settings: BenchSettings, kind: BrokerKind) -> Speed:
    work = settings.folder(f"{NAME}-{kind}")
    with (
        running_server(kind, work, settings.fsync) as server,
        service("consumer", NO_OP, server.url, work) as consumer,
        asyncio.Runner() as runner,
    ):
        broker = runner.run(connected(server.url))
        try:
            return measure(OurContestant(runner, broker, consumer), _seconds(settings))
        finally:
            runner.run(broker.close())


def _peer(settings: BenchSettings, peer: Peer, speeds: dict[Peer, Speed]) -> Iterator[Row]:
    try:
        python = environment(peer.name, peer.packages, settings.cache)
        work = settings.folder(f"{NAME}-{peer.name}")
        with (
            _server_of(peer, settings, work) as url,
            running_peer(peer, python, url, work) as contestant,
        ):
            speeds[peer] = measure(contestant, _seconds(settings))
    except (CannotRun, TimeoutError) as error:
        yield missing(NAME, peer.name, error)
        return
    yield _row(versions(peer.packages, python), speeds[peer], peer.how)


@contextlib.contextmanager
def _server_of(peer: Peer, settings: BenchSettings, work: Path) -> Iterator[str]:
    if peer.server == "rabbitmq":
        with rabbitmq(work) as url:
            yield url
    else:
        with running_server("redis", work, settings.fsync) as server:
            yield server.url


def _row(what: str, speed: Speed, how: str) -> Row:
    rest = f"publishing alongside {speed.concurrent:,.0f}/s; CPU {speed.cpu_per_1000:.2f} s per 1,000"
    return Row(NAME, what, speed.backlog, _UNIT, note=f"{how}; {rest}")


def _comparisons(ours: dict[BrokerKind, Speed], peers: dict[Peer, Speed]) -> Iterator[Row]:
    redis = ours.get("redis")
    keeping = best({peer.name: speed.backlog for peer, speed in peers.items() if peer.leases})
    fastest = best({peer.name: speed.backlog for peer, speed in peers.items()})
    for what, rival, bound in (
        ("headrace on redis ÷ best peer with leases and late acks", keeping, 2.0),
        ("headrace on redis ÷ fastest peer", fastest, 1.0),
    ):
        if redis is None or rival is None:
            yield missing(NAME, what, "one side of it was not measured")
        else:
            ratio = redis.backlog / rival.rate
            yield Row(NAME, what, ratio, "×", Target("at least", bound), f"the best is {rival.name}")
    what = "headrace on kafka ÷ on redis"
    if redis is None or "kafka" not in ours:
        yield missing(NAME, what, "one side of it was not measured")
    else:
        yield Row(NAME, what, ours["kafka"].backlog / redis.backlog, "×", Target("at least", 0.6))


def _seconds(settings: BenchSettings) -> float:
    return 1.5 if settings.quick else 8.0
