"""Fetches Kafka and makes it quick to start, once for each cache folder.

    <cache>/  lock   jars-<pom>/*.jar   jars-<pom>-java-<build>/{classes.jsa, formatted/…}

Besides the jars the cache holds an archive of the classes that a node loads (`-XX:SharedArchiveFile`, JEP
350), and a data folder as `kafka-storage format` makes it. With both a new node is up in under 2 s, without
in over 6.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headrace.broker.embedded.apache_kafka.home import KafkaHome
from headrace.broker.embedded.apache_kafka.jars import fetch_jars, jars_folder
from headrace.broker.embedded.apache_kafka.java import Java, find_java
from headrace.broker.embedded.apache_kafka.node import Node, new_cluster_id
from headrace.broker.embedded.apache_kafka.properties import Ports, node_properties, write_properties
from headrace.broker.embedded.folder import EmbeddedUnusable, explain, free_port

_HEAP_MB = 256
_PATIENCE_S = 180.0


def provide_home(cache: Path, java: Path | None = None) -> KafkaHome:
    """All that nodes need, made where it is not there yet; processes that want it at the same time make it
    once. `java`: the program, None for the one that the shell finds. Raises EmbeddedUnusable."""
    found = find_java(java)
    ready = cache / f"{jars_folder(cache).name}-java-{found.build}"
    if not ready.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with _exclusively(cache / "lock"):
                _make_ready(cache, found, ready)
        except OSError as error:
            raise EmbeddedUnusable(explain(error, cache)) from error
    return _home(fetch_jars(cache), found, ready)


def _home(jars: list[Path], java: Java, ready: Path) -> KafkaHome:
    archive = ready / "classes.jsa"
    # What does not fit any more (a jar was touched) is ignored by Java, which says so unless told not to.
    options = (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
    return KafkaHome(java, tuple(jars), ready / "formatted", options if archive.is_file() else ())


@contextmanager
def _exclusively(path: Path) -> Iterator[None]:
    """Waits for as long as another process is at it."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make_ready(cache: Path, java: Java, ready: Path) -> None:
    """`ready` appears at once or not at all."""
    jars = fetch_jars(cache)
    if ready.is_dir():  # another process made it while this one waited
        return
    with tempfile.TemporaryDirectory(prefix=".java-", dir=cache) as folder:
        made, trial = Path(folder, "made"), Path(folder, "trial")
        made.mkdir()
        trial.mkdir()
        home = KafkaHome(java, tuple(jars), made / "formatted")
        properties = _trial_properties(home.formatted)
        _format(home, trial, properties)
        _archive_classes(home, trial, properties, made / "classes.jsa")
        made.rename(ready)


def _trial_properties(data: Path) -> dict[str, str]:
    return node_properties(1, [Ports(free_port(), free_port())], data, {})


def _format(home: KafkaHome, folder: Path, properties: dict[str, str]) -> None:
    settings = folder / "format.properties"
    write_properties(settings, properties)
    arguments = ("format", "--cluster-id", new_cluster_id(), "--config", str(settings))
    command = home.command("kafka.tools.StorageTool", *arguments, heap_mb=_HEAP_MB)
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S, check=False
    )
    if done.returncode != 0 or not home.formatted.is_dir():
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines() or [
            "it said nothing"
        ]
        raise EmbeddedUnusable(f"Kafka could not format a data folder: {said[-1][:500]}")


def _archive_classes(home: KafkaHome, folder: Path, properties: dict[str, str], archive: Path) -> None:
    """Starts a node once and lets Java write down on its exit what it had loaded."""
    node = Node(1, folder / "node-1", _HEAP_MB)
    recording = replace(home, options=(f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds*=off"))
    own = {**properties, "log.dirs": str(node.data)}
    lock = os.open(folder, os.O_RDONLY)
    try:
        node.start(recording, new_cluster_id(), own, lock)
        deadline = time.monotonic() + _PATIENCE_S
        while not node.started():
            if time.monotonic() > deadline:
                raise EmbeddedUnusable(
                    f"Kafka did not start within {_PATIENCE_S:.0f} s; the machine is too slow"
                )
            time.sleep(0.05)
    finally:
        os.close(lock)
        node.stop(_PATIENCE_S)
