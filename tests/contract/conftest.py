"""Each test of the contract runs over every adapter. One Valkey and one Kafka a test session, one prefix a
test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.broker.embedded.valkey import EmbeddedValkey
from tests.contract.case import Case
from tests.contract.kafka_case import kafka_case
from tests.contract.memory_case import memory_case
from tests.contract.redis_case import redis_case


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedValkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


@pytest.fixture(params=["memory", "redis", "kafka"])
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    made: Case
    if request.param == "memory":
        made = memory_case(prefix)
    elif request.param == "kafka":
        made = await kafka_case(request.getfixturevalue("kafka_url"), prefix)
    else:
        made = await redis_case(request.getfixturevalue("valkey_url"), prefix)
    yield made
    await made.close()
