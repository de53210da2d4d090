"""Workers on Apache Kafka: what depends on partitions, positions and sessions that end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.broker.message import Lane, Message
from headrace.consumer.settings import ConsumerSettings
from tests.integration.consumer.house import (
    House,
    Reader,
    message,
    publish,
    registered,
    sim_settings,
    tokens_in_log,
)

pytestmark = pytest.mark.slow

OPTIONS = {"partitions": "2", "delays": "20ms 500ms 15s"}


@pytest.fixture
async def kafka(kafka_url: str, prefix: str) -> AsyncIterator[Broker]:
    connected = await connect(kafka_url, prefix=prefix, options=OPTIONS)
    yield connected
    await connected.close()


def settings(prefix: str, **changes: Any) -> ConsumerSettings:
    return sim_settings(prefix=prefix, lanes=[Lane.BATCH], lease_ms=1500, **changes)


# Tokens, 5 ms each: long enough for the restart to come in mid-answer on a slow machine, too.
LONG = 800


async def test_a_planned_restart_loses_and_recomputes_nothing(kafka: Broker, prefix: str) -> None:
    first = await House.open(kafka, settings(prefix, grace_s=0))
    refs = await publish(kafka, [message(n, LONG) for n in range(3)])
    readers = [asyncio.create_task(Reader.watch(kafka, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(kafka, ref, 20)
    await first.stop()
    second = await House.open(kafka, settings(prefix))
    for number, reader in enumerate(await asyncio.gather(*readers)):
        reader.check(number, LONG)
    await second.stop()
    assert second.worker.counters.resumed == 3


async def test_a_request_for_the_model_of_another_pool_is_answered_there(kafka: Broker, prefix: str) -> None:
    small = await House.open(kafka, settings(prefix, model="small"))
    large = await House.open(kafka, settings(prefix, model="large", pool="gpus"))
    await registered(kafka, 2)
    line = json.loads(message(0, 12).body)
    line["body"]["model"] = "large"
    (ref,) = await publish(kafka, [Message(json.dumps(line).encode(), "r0", Lane.BATCH, stream=True)])
    (await Reader.watch(kafka, ref)).check(0, 12)
    await small.stop()
    await large.stop()
    assert (small.worker.counters.passed_on, large.worker.counters.finished) == (1, 1)
