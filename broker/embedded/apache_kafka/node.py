"""One node of an embedded Kafka: its folder and its process.

node-1/  server.properties   kafka.log   data/meta.properties   data/<topic>-<partition>/…
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import uuid
from collections.abc import Mapping
from pathlib import Path

from headrace.broker.embedded.apache_kafka.home import KafkaHome
from headrace.broker.embedded.apache_kafka.properties import write_properties
from headrace.broker.embedded.child import Child
from headrace.broker.embedded.folder import EmbeddedUnusable, ended_early

_STARTED = "Kafka Server started"
_STOP_PATIENCE_S = 15.0


class PortTaken(EmbeddedUnusable):
    """Another program listens there."""


class Node:
    """Node `number` with its data in `folder`. `heap_mb` bounds the Java heap."""

    def __init__(self, number: int, folder: Path, heap_mb: int) -> None:
        self.number = number
        self._folder = folder
        self._heap_mb = heap_mb
        self._child: Child | None = None
        self._log_begin = 0

    @property
    def alive(self) -> bool:
        child = self._child
        return child is not None and child.alive

    @property
    def pid(self) -> int:
        assert self._child is not None, "the node was not started"
        return self._child.pid

    @property
    def data(self) -> Path:
        return self._folder / "data"

    @property
    def _log_path(self) -> Path:
        return self._folder / "kafka.log"

    def start(self, home: KafkaHome, cluster: str, properties: Mapping[str, str], lock: int) -> None:
        """Starts the process; `await_started` waits for it. `lock`: a descriptor that it shall hold open.
        Raises OSError where its folder cannot be used."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not (self.data / "meta.properties").is_file():
            format_storage(self.data, home.formatted, self.number, cluster)
        settings = self._folder / "server.properties"
        write_properties(settings, properties)
        with open(self._log_path, "ab") as output:
            self._log_begin = output.tell()
            command = home.command("kafka.Kafka", str(settings), heap_mb=self._heap_mb)
            self._child = Child(command, output, keep_open=[lock])

    def started(self) -> bool:
        """Whether it serves clients; raises EmbeddedUnusable where it ended instead."""
        child = self._child  # another thread may stop it meanwhile
        status = child.status if child is not None else -signal.SIGTERM
        log = self._log()
        if status is not None:
            raise self._failure(status, log)
        return _STARTED in log

    def stop(self, patience_s: float = _STOP_PATIENCE_S) -> None:
        """Ends it in order, or after a while all the same; its data stay."""
        if self._child is not None:
            self._child.stop(patience_s)
            self._child = None

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        if self._child is not None:
            if self._child.alive:
                os.kill(self._child.pid, signal.SIGKILL)
            self._child.stop(0)
            self._child = None

    def wait(self) -> None:
        if self._child is not None:
            self._child.wait()

    def _log(self) -> str:
        with open(self._log_path, "rb") as log:
            log.seek(self._log_begin)
            return log.read().decode(errors="replace")

    def _failure(self, status: int, log: str) -> EmbeddedUnusable:
        if "Address already in use" in log:
            return PortTaken(
                f"a port of Kafka's node {self.number} is taken by another program; "
                "stop it or choose another port"
            )
        if "No space left on device" in log:
            return EmbeddedUnusable(
                f"the disk of {self._folder} is full; free some space, or choose another folder"
            )
        if "OutOfMemoryError" in log or "insufficient memory" in log:
            return EmbeddedUnusable(
                f"Kafka's node {self.number} found no memory for a heap of {self._heap_mb} MB; free some"
            )
        server = f"Kafka's node {self.number} in {self._folder}"
        if "ConfigException" in log:
            [wrong, *_] = (line for line in log.splitlines() if "ConfigException" in line)
            return EmbeddedUnusable(f"{server} did not start: {wrong[:500]}; set that property right")
        return EmbeddedUnusable(ended_early(server, status, self._log_path))


def new_cluster_id() -> str:
    """A random id in Kafka's notation."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def format_storage(data: Path, formatted: Path, number: int, cluster: str) -> None:
    """Makes a new data folder as `kafka-storage format` would: nodes differ in `meta.properties` only, so a
    copy of one that it formatted saves a start of Java. That file comes last: it says that all is there."""
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(formatted, data)
    meta = {
        "version": "1",
        "cluster.id": cluster,
        "node.id": str(number),
        "directory.id": new_cluster_id(),
    }
    write_properties(data / "meta.new", meta)
    (data / "meta.new").rename(data / "meta.properties")
