"""The client against the real gateway, over a broker whose logs the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.broker.events import Delta, Finished, Started
from headrace.broker.message import RequestRef
from headrace.producer.backoff import RetryPolicy
from headrace.producer.client import Client
from headrace.producer.client_errors import RequestIdTaken, UnknownRequest
from headrace.producer.gateway.server import Gateway
from headrace.producer.gateway.settings import GatewaySettings
from tests.unit.gateway.fake_broker import FakeBroker

QUICK = RetryPolicy(first_s=0.001, longest_s=0.01, patience_s=5)
STARTED = Started(1, "c", "p", 0, b"", "f")


@asynccontextmanager
async def gateway(broker: FakeBroker) -> AsyncIterator[tuple[Gateway, int]]:
    served = Gateway(broker, GatewaySettings.model_validate({"broker": "redis://x", "port": 0}))
    port = await served.start()
    try:
        yield served, port
    finally:
        await served.drain(0)


async def test_an_answer_arrives_whole() -> None:
    broker = FakeBroker()
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}") as client:
        asking = asyncio.create_task(client.complete("Hi", request_id="r"))
        await broker.publish_seen.wait()
        await broker.write(
            "r", STARTED, Delta(1, 0, (5,), "Hel"), Delta(1, 1, (6,), "lo"), Finished(1, "stop")
        )
        completion = await asking
    assert (completion.text, completion.token_ids, completion.finish_reason) == ("Hello", (5, 6), "stop")


@pytest.mark.slow  # the gateway asks for a wait of a second
async def test_a_gateway_that_goes_away_in_mid_answer_is_replaced_by_another_unnoticed() -> None:
    broker = FakeBroker()
    async with (
        gateway(broker) as (first, one),
        gateway(broker) as (_, other),
        Client(f"ipv4:127.0.0.1:{one},127.0.0.1:{other}", policy=QUICK) as client,
    ):
        texts: list[str] = []
        await broker.write("r", STARTED, Delta(1, 0, (5,), "Hel"))
        async for event in client.generate("Hi", request_id="r"):
            if event.WhichOneof("kind") != "delta":
                continue
            texts.append(event.delta.text)
            if len(texts) == 1:
                await first.drain(0)
                await broker.write("r", Delta(1, 1, (6,), "lo"), Finished(1, "stop"))
    assert texts == ["Hel", "lo"]
    assert broker.cancelled == []


async def test_submit_watch_and_cancel_go_by_the_id() -> None:
    broker = FakeBroker()
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        submitted = await client.submit("Hi")
        assert not submitted.duplicate
        assert (await client.submit("Hi", request_id=submitted.request_id)).duplicate
        with pytest.raises(RequestIdTaken):
            await client.submit("Hello", request_id=submitted.request_id)
        assert await client.cancel(submitted.request_id)
        assert broker.cancelled == [RequestRef(submitted.request_id)]
        with pytest.raises(UnknownRequest):
            await anext(client.watch("nobody"))
