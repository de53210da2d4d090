"""The brokers under the measurements, each fresh and on loopback."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from benchmarks.queue_bench.settings import BrokerKind, Fsync
from benchmarks.shared.processes import last_words, running, wait_until
from benchmarks.shared.report import CannotRun
from headrace.broker.embedded.folder import LOOPBACK, free_port, port_is_free
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
def rabbitmq(folder: Path) -> Iterator[str]:
    """Address of a RabbitMQ of our own; the program is the Debian package's, or what the shell finds."""
    packaged = sorted(Path("/usr/lib/rabbitmq/lib").glob("*/sbin/rabbitmq-server"))
    program = str(packaged[-1]) if packaged else shutil.which("rabbitmq-server")
    names = shutil.which("epmd")
    if program is None or names is None:
        raise CannotRun("there is no RabbitMQ here: `apt-get install rabbitmq-server`")
    port, inner, epmd = free_port(), free_port(), str(free_port())
    env = {
        "HOME": str(folder),
        "ERL_EPMD_PORT": epmd,
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(inner),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    with (
        running([names, "-port", epmd, "-address", LOOPBACK], folder / "epmd.log"),
        running([program], folder / "rabbitmq.log", env=env) as process,
    ):
        wait_until(lambda: not port_is_free(port) or process.poll() is not None, "RabbitMQ came up")
        if process.poll() is not None:
            raise CannotRun(f"RabbitMQ did not come up: {last_words(folder / 'rabbitmq.log')}")
        yield f"amqp://guest:guest@{LOOPBACK}:{port}/"


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[Server]:
    """One node, as tests use it."""
    try:
        with EmbeddedKafka(folder / "kafka") as embedded:
            yield Server("kafka", embedded.url, embedded.pid())
    except BrokerError as error:
        raise CannotRun(error) from error
