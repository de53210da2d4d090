"""Apache Kafka for tests: the cluster that the environment names, or an embedded one, once a test session.

`tests/conftest.py` makes the fixtures known to all tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from headrace.broker.embedded.apache_kafka.provision import provide_home
from headrace.broker.embedded.kafka import EmbeddedKafka, EmbeddedUnusable, KafkaOptions, default_cache

HEAP_MB = 256
NO_KAFKA = "NO KAFKA, SO THIS IS NOT TESTED"
AUTHORIZER = {  # everybody may do everything, but where a test says otherwise
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="session")
def kafka_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Kafka that all tests share, so each takes a prefix of its own. `HEADRACE_TEST_KAFKA` may
    name one (`kafka://host:port,…` or `host:port,…`); else a node is started."""
    named = os.environ.get("HEADRACE_TEST_KAFKA")
    if named:
        yield named if "://" in named else f"kafka://{named}"
        return
    with running_kafka(tmp_path_factory.mktemp("kafka"), properties=AUTHORIZER) as server:
        yield server.url


@pytest.fixture(scope="module")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """Three nodes that the tests of a module share; one that kills a node starts it again. They are no longer
    there than needed: three idle nodes are a burden to a small machine."""
    with running_kafka(tmp_path_factory.mktemp("kafka-cluster"), nodes=3) as cluster:
        yield cluster


@contextmanager
def running_kafka(
    folder: Path, nodes: int = 1, properties: Mapping[str, str] | None = None
) -> Iterator[EmbeddedKafka]:
    """An embedded Kafka of a test's own; `properties`: further settings of its nodes. Where there can be none
    the test is skipped, loudly; where `HEADRACE_CI` is set it fails."""
    require_kafka()
    options = KafkaOptions(nodes=nodes, heap_mb=HEAP_MB, properties=properties or {})
    with EmbeddedKafka(folder, options) as server:
        yield server


def require_kafka() -> None:
    """Fetches Kafka where it is not there yet; skips the test, or fails it, where there can be none."""
    try:
        provide_home(default_cache())
    except EmbeddedUnusable as error:
        missing(f"{NO_KAFKA}: {error}")


def missing(reason: str) -> NoReturn:
    """Skips the test, or fails it under continuous integration, where everything must be there."""
    if os.environ.get("HEADRACE_CI"):
        pytest.fail(reason)
    pytest.skip(reason)
