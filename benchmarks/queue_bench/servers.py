"""The brokers under the measurements, each fresh and on loopback."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.queue_bench.report import CannotRun
from benchmarks.queue_bench.settings import BrokerKind, Fsync
from headrace.broker.embedded.kafka import EmbeddedKafka
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.errors import BrokerError


@dataclass(frozen=True, slots=True)
class Server:
    """`pid`: of the server process."""

    kind: BrokerKind
    url: str
    pid: int


@contextlib.contextmanager
def running_server(kind: BrokerKind, folder: Path, fsync: Fsync) -> Iterator[Server]:
    """Raises CannotRun where this machine cannot run it."""
    with valkey(folder, fsync) if kind == "redis" else kafka(folder) as server:
        yield server


@contextlib.contextmanager
def valkey(folder: Path, fsync: Fsync) -> Iterator[Server]:
    """`fsync` is set on the running server; `everysec` is what most users of the peers have."""
    try:
        with EmbeddedValkey(folder / "valkey", port=0) as embedded:
            client = redis.Redis.from_url(embedded.url)
            client.config_set("appendfsync", fsync)
            client.close()
            yield Server("redis", embedded.url, embedded.pid)
    except BrokerError as error:
        raise CannotRun(error) from error


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Server]:
    """One node, as tests use it."""
    try:
        with EmbeddedKafka(folder / "kafka") as embedded:
            yield Server("kafka", embedded.url, embedded.pid())
    except BrokerError as error:
        raise CannotRun(error) from error
