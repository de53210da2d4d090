"""The brokers under test, as something that can be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from headrace.broker.embedded.folder import LOOPBACK
from headrace.broker.embedded.folder import free_port as _free_port
from headrace.broker.embedded.kafka import EmbeddedKafka, KafkaOptions
from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.support.kafka_server import HEAP_MB

_LATELY_S = 2.0  # a server under load writes to its files more often
Kind: TypeAlias = Literal["redis", "kafka"]


class Server(Protocol):
    """All methods block. `fill_disk`: the write that does not fit ends the server; one that is started again
    has room."""

    @property
    def kind(self) -> Kind: ...

    @property
    def url(self) -> str: ...

    @property
    def alive(self) -> bool: ...

    def fill_disk(self, room: int) -> None: ...

    def kill(self) -> None:
        """SIGKILL."""

    def start(self) -> None:
        """Starts what does not run, on the data that are there."""

    def stop(self) -> None:
        """In order."""


class Valkey:
    """One server on a port of loopback. `proxy_port`: where a proxy must listen; 0: anywhere."""

    kind: Kind = "redis"
    proxy_port = 0

    def __init__(self, folder: Path) -> None:
        self._embedded = EmbeddedValkey(folder, port=0)
        self._folder = folder

    @property
    def url(self) -> str:
        return self._embedded.url

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def through(self, port: int) -> str:
        """The server's address by way of a proxy at that port."""
        return f"redis://{LOOPBACK}:{port}/0"

    @property
    def alive(self) -> bool:
        return self._embedded.alive

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._embedded.pid, signal.SIGKILL)
        self._embedded.wait()

    def start(self) -> None:
        if not self._embedded.alive:
            self._embedded.start()

    def stop(self) -> None:
        self._embedded.stop()

    def fill_disk(self, room: int) -> None:
        """Leaves room for so many bytes in the append-only file."""
        _limit_files(self._embedded.pid, self._folder.glob("appendonlydir/*.incr.aof"), room)


class Kafka:
    """One node, or three. `OPTIONS` stand in its address: small topics, short delays. Each topic is spread by
    itself, so a third consumer needs a third partition."""

    kind: Kind = "kafka"
    OPTIONS = "partitions=3&delays=1s"

    def __init__(self, folder: Path, nodes: int = 1) -> None:
        self._listener, self.proxy_port, own = (_free_port() for _ in range(3))
        properties = self._two_listeners(own) if nodes == 1 else {}
        port = own if nodes == 1 else 0
        options = KafkaOptions(nodes=nodes, port=port, heap_mb=HEAP_MB, properties=properties)
        self._embedded = EmbeddedKafka(folder, options)
        self._folder = folder
        self._nodes = range(1, nodes + 1)

    def _two_listeners(self, own: int) -> dict[str, str]:
        """Clients follow the address that a node names, so one that is to go through the proxy needs a
        listener of its own, which names the proxy."""
        quorum = f"{LOOPBACK}:{_free_port()}"
        return {
            "controller.quorum.voters": f"1@{quorum}",
            "listeners": f"PLAINTEXT://{LOOPBACK}:{own},PROXIED://{LOOPBACK}:{self._listener},"
            f"CONTROLLER://{quorum}",
            "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{own},PROXIED://{LOOPBACK}:{self.proxy_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    @property
    def url(self) -> str:
        return f"{self._embedded.url}/?{self.OPTIONS}"

    @property
    def address(self) -> tuple[str, int]:
        return LOOPBACK, self._listener

    def through(self, port: int) -> str:
        """The server's address by way of a proxy at that port."""
        return f"kafka://{LOOPBACK}:{port}/?{self.OPTIONS}"

    def kill(self) -> None:
        for node in self._nodes:
            self._embedded.kill(node)

    @property
    def alive(self) -> bool:
        return self._embedded.alive

    def fill_disk(self, room: int) -> None:
        """Leaves room for so many bytes in the longest segment that the first node writes to; none in any
        other file that is as long. Little is written where a controller keeps its own."""
        segments = list(self._folder.glob("node-1/**/*-*/*.log"))
        longest = max(segments, key=lambda path: path.stat().st_size)
        is_controllers = longest.parent.name.startswith("__cluster_metadata")
        _limit_files(self._embedded.pid(), segments, min(room, 500) if is_controllers else room)

    def kill_node(self, node: int) -> None:
        self._embedded.kill(node)

    def start_node(self, node: int) -> None:
        self._embedded.restart(node)

    def start(self) -> None:
        self._embedded.start()

    def stop(self) -> None:
        self._embedded.stop()


def _limit_files(pid: int, files: Iterable[Path], room: int) -> None:
    """No file of the process may grow beyond the longest of these that is being written to by more than
    `room` bytes: its writes fail as on a full disk, and nobody need be root for it."""
    stats = [path.stat() for path in files]
    now = max(stat.st_mtime for stat in stats)
    longest = max(stat.st_size for stat in stats if stat.st_mtime > now - _LATELY_S)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (longest + room, resource.RLIM_INFINITY))


@contextlib.contextmanager
def running(server: Valkey | Kafka) -> Iterator[Valkey | Kafka]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
