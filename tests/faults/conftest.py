"""The brokers of the suite: one of each kind a session, a prefix of its own for each run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.broker.embedded.kafka import EmbeddedUnusable
from tests.faults.brokers import Kafka, Valkey, running
from tests.support.kafka_server import missing


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    with running(server):
        yield server


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    yield from _kafka(tmp_path_factory, nodes=1)


@pytest.fixture
def kafka_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Three of them, for one test."""
    yield from _kafka(tmp_path_factory, nodes=3)


def _kafka(folders: pytest.TempPathFactory, nodes: int) -> Iterator[Kafka]:
    server = Kafka(folders.mktemp("kafka"), nodes)
    try:
        server.start()
    except EmbeddedUnusable as error:
        missing(f"NO KAFKA, SO THIS IS NOT TESTED: {error}")
    try:
        yield server
    finally:
        server.stop()
