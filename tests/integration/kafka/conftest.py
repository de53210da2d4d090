"""What tests on a real Kafka share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from tests.contract.kafka_case import KafkaCase, kafka_case


@pytest.fixture
async def kafka(kafka_url: str) -> AsyncIterator[KafkaCase]:
    made = await kafka_case(kafka_url, f"test-{uuid.uuid4().hex[:12]}")
    yield made
    await made.close()
