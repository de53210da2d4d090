"""An embedded Apache Kafka: one node or a cluster of three, on this machine's loopback, without Docker.

Kafka is fetched by Maven once (43 MB) and runs on Java 17 or newer, in KRaft mode. The nodes die with the
process that started them. Killed at any instant and started again on the same folder, they go on where they
were, on the same ports; like any Kafka they leave it to the system when to write to the disk, so a machine
that loses power may lose the last seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from headrace.broker.embedded.apache_kafka.home import KafkaHome
from headrace.broker.embedded.apache_kafka.jars import jars_folder
from headrace.broker.embedded.apache_kafka.node import Node, PortTaken, new_cluster_id
from headrace.broker.embedded.apache_kafka.properties import Ports, node_properties
from headrace.broker.embedded.apache_kafka.provision import provide_home
from headrace.broker.embedded.folder import (
    LOOPBACK,
    EmbeddedUnusable,
    FolderLock,
    explain,
    free_port,
    port_is_free,
    probe_writing,
)

__all__ = ["EmbeddedKafka", "EmbeddedUnusable", "KafkaOptions"]

_START_PATIENCE_S = 120.0
_FREE_PORT_ATTEMPTS = 5
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """`nodes`: 1 or 3. `port`: that of the first node, the others take the next ones; 0: any free ones.
    `cache`: where Kafka is kept once fetched; None: in the user's cache folder. `java`: the program; None:
    the one that the shell finds. `properties`: further settings of every node, or other values than ours."""

    nodes: int = 1
    port: int = 0
    cache: Path | None = None
    java: Path | None = None
    heap_mb: int = 384
    properties: Mapping[str, str] = field(default_factory=dict)


class EmbeddedKafka:
    """Nodes 1 … n on one data folder. All failures are `EmbeddedUnusable` with one sentence.

    All methods block and are safe to call from a worker thread, one at a time.
    """

    def __init__(self, data_dir: Path, options: KafkaOptions | None = None) -> None:
        self._folder = Path(data_dir).absolute()
        self._options = options or KafkaOptions()
        assert self._options.nodes in (1, 3), "one node, or three"
        numbers = range(1, self._options.nodes + 1)
        heap_mb = self._options.heap_mb
        self._nodes = [Node(number, self._folder / f"node-{number}", heap_mb) for number in numbers]
        self._lock = FolderLock(self._folder / "kafka.lock")
        self._home: KafkaHome | None = None
        self._layout = _Layout("", ())
        self._served = False

    @property
    def bootstrap(self) -> str:
        """`host:port,…` of all nodes, whether they run or not."""
        return ",".join(f"{LOOPBACK}:{ports.clients}" for ports in self._layout.ports)

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def alive(self) -> bool:
        """Whether every node runs."""
        return all(node.alive for node in self._nodes)

    @property
    def fetched(self) -> bool:
        """Whether Kafka is on this machine; else `start` fetches it first. Raises EmbeddedUnusable where
        there is no place to keep it."""
        return jars_folder(self._cache).is_dir()

    @property
    def _cache(self) -> Path:
        return self._options.cache or default_cache()

    def pid(self, node: int = 1) -> int:
        """Process id of a node that was started."""
        return self._node(node).pid

    def start(self, timeout_s: float = _START_PATIENCE_S) -> None:
        """Starts all nodes that do not run, and waits until they serve clients. Fetches Kafka first, where
        this is the first start on this machine; `timeout_s` bounds the wait that follows. After a failure no
        node runs."""
        self._home = self._home or provide_home(self._cache, self._options.java)
        self._take_folder()
        try:
            self._start_on_some_ports(timeout_s)
            self._served = True
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all nodes in order; their data stay. Does nothing where none runs."""
        self._stop_nodes()
        self._lock.release()

    def kill(self, node: int = 1) -> None:
        """Ends one node as a crash would (SIGKILL)."""
        self._node(node).kill()

    def restart(self, node: int = 1, timeout_s: float = _START_PATIENCE_S) -> None:
        """Starts one node again, in order where it still runs, and waits until it serves clients."""
        assert self._home is not None, "the cluster was not started"
        self._node(node).stop()
        self._start([self._node(node)], timeout_s)

    def wait(self, node: int = 1) -> None:
        """Blocks until that node has ended, however it ends."""
        self._node(node).wait()

    def __enter__(self) -> EmbeddedKafka:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _node(self, number: int) -> Node:
        return self._nodes[number - 1]

    def _start_on_some_ports(self, timeout_s: float) -> None:
        for attempt in range(_FREE_PORT_ATTEMPTS):
            self._choose_ports(anew=attempt > 0)
            try:
                return self._start([node for node in self._nodes if not node.alive], timeout_s)
            except PortTaken:
                if self._options.port or self._served:  # clients know these, and no others
                    raise
                self._stop_nodes()
        raise EmbeddedUnusable("no free loopback ports were found for Kafka; name one")

    def _take_folder(self) -> None:
        if self._lock.descriptor >= 0:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe_writing(self._folder)
            self._lock.acquire()
            self._lock.sign(os.getpid())
        except OSError as error:
            raise EmbeddedUnusable(explain(error, self._folder)) from error

    def _choose_ports(self, anew: bool) -> None:
        """Those of the last time, unless somebody else has them now. Once it has served, no others will do:
        clients know these."""
        if self._served:
            return
        path = self._folder / "cluster.json"
        known = _Layout.read(path)
        if known is not None and len(known.ports) != self._options.nodes:
            raise EmbeddedUnusable(
                f"{self._folder} holds a cluster of {len(known.ports)} node(s), not {self._options.nodes}; "
                "choose another folder"
            )
        cluster = known.cluster if known else new_cluster_id()
        ports = known.ports if known else ()
        if anew or not ports or not self._fit(ports):
            ports = self._new_ports()
        self._layout = _Layout(cluster, ports)
        try:
            self._layout.write(path)
        except OSError as error:
            raise EmbeddedUnusable(explain(error, self._folder)) from error

    def _fit(self, ports: tuple[Ports, ...]) -> bool:
        if self._options.port and ports[0].clients != self._options.port:
            return False
        return any(node.alive for node in self._nodes) or all(
            port_is_free(port) for each in ports for port in (each.clients, each.quorum)
        )

    def _new_ports(self) -> tuple[Ports, ...]:
        first, count = self._options.port, self._options.nodes
        quorum = _distinct_free_ports(2 * count)
        clients = list(range(first, first + count)) if first else quorum[count:]
        return tuple(Ports(*pair) for pair in zip(clients, quorum[:count], strict=True))

    def _start(self, nodes: list[Node], timeout_s: float) -> None:
        assert self._home is not None
        deadline = time.monotonic() + timeout_s
        try:
            for node in nodes:
                properties = node_properties(
                    node.number, self._layout.ports, node.data, self._options.properties
                )
                node.start(self._home, self._layout.cluster, properties, self._lock.descriptor)
        except OSError as error:
            raise EmbeddedUnusable(explain(error, self._folder)) from error
        for node in nodes:
            while not node.started():
                if time.monotonic() > deadline:
                    raise EmbeddedUnusable(
                        f"Kafka in {self._folder} did not start within {timeout_s:.0f} s; see its kafka.log"
                    )
                time.sleep(_POLL_S)

    def _stop_nodes(self) -> None:
        with ThreadPoolExecutor(len(self._nodes)) as pool:
            list(pool.map(Node.stop, self._nodes))


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a data folder remembers of its cluster."""

    cluster: str
    ports: tuple[Ports, ...]

    @staticmethod
    def read(path: Path) -> _Layout | None:
        """None where nothing was written yet, or only half of it."""
        try:
            found = json.loads(path.read_text())
            return _Layout(str(found["cluster"]), tuple(Ports(*map(int, pair)) for pair in found["ports"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, path: Path) -> None:
        text = json.dumps({"cluster": self.cluster, "ports": [[p.clients, p.quorum] for p in self.ports]})
        new = path.with_suffix(".new")
        new.write_text(text)
        new.rename(path)


def default_cache() -> Path:
    """Where Kafka is kept once it was fetched. Raises EmbeddedUnusable for a user without a home."""
    try:
        return Path.home() / ".cache" / "headrace" / "kafka"
    except RuntimeError as error:
        raise EmbeddedUnusable("there is no home folder to keep Kafka in; name a cache folder") from error


def _distinct_free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
