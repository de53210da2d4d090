"""Brokers for the consumer's tests: the in-memory log with Kafka's rules, and Redis on an embedded server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.support.memory_log import MemoryLog


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(Path(tmp_path_factory.mktemp("consumer-valkey")))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def prefix() -> str:
    """Of the names on Redis; the in-memory log has none but the default one."""
    return f"t-{secrets.token_hex(4)}"


@pytest.fixture
async def shared_broker(valkey: EmbeddedValkey, prefix: str) -> AsyncIterator[Broker]:
    """One whose consumers may take any delivery, not only those of their own partitions."""
    connected = await connect(valkey.url, prefix=prefix)
    yield connected
    await connected.close()


@pytest.fixture(params=["memory", "redis"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    if request.param == "memory":
        yield MemoryLog()
    else:
        valkey: EmbeddedValkey = request.getfixturevalue("valkey")
        connected = await connect(valkey.url, prefix=request.getfixturevalue("prefix"))
        yield connected
        await connected.close()
