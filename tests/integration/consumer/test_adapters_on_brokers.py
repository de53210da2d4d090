"""Requests for LoRA adapters beside requests for the bare model, on real brokers, with an engine process."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.broker.contract import Broker
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

ASKED = ["sql", None, "poems", "sql"]


async def test_each_adapter_answers_and_goes_on_elsewhere_when_its_worker_is_killed(
    shared_broker: Broker,
) -> None:
    broker = shared_broker
    settings = sim_settings(lease_ms=400, adapters=["sql", "poems"])
    first = await House.open(broker, settings)
    await registered(broker, 1)
    [entry] = await broker.consumers()
    assert entry.serves.models == ("sim", "sql", "poems")
    refs = await publish(broker, [message(n, 80, adapter=name) for n, name in enumerate(ASKED)])
    readers = [asyncio.create_task(Reader.watch(broker, ref)) for ref in refs]
    for ref in refs:
        await tokens_in_log(broker, ref, 5)
    second = await House.open(broker, settings)
    await first.kill()
    for number, reader in enumerate(await asyncio.gather(*readers)):
        reader.check(number, 80, ASKED[number])
        assert reader.kept[-1] >= 5
    await second.stop()
    lines = [json.loads((await anext(results)).line) for results in [broker.results()] for _ in refs]
    models = {line["custom_id"]: line["response"]["body"]["model"] for line in lines}
    assert models == {f"c{n}": name or "sim" for n, name in enumerate(ASKED)}
