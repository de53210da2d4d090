"""One Valkey a test session; a prefix of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.embedded.valkey import EmbeddedValkey
from headrace.broker.names import Names


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def names() -> Names:
    return Names(f"t{uuid.uuid4().hex[:12]}")


@pytest.fixture
async def broker(valkey: EmbeddedValkey, names: Names) -> AsyncIterator[Broker]:
    made = await connect(valkey.url, prefix=names.prefix)
    yield made
    await made.close()


@pytest.fixture
async def client(valkey: EmbeddedValkey) -> AsyncIterator[Redis]:
    """What anybody can do to the server with a stock client."""
    async with Redis.from_url(valkey.url) as made:
        yield made
