"""The client against the real gateway, over a broker whose logs the test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.contract import ConsumerEntry, Serves
from headrace.broker.events import Delta, Finished, Started, TokenLogprobs
from headrace.broker.message import Lane, RequestRef
from headrace.producer.backoff import RetryPolicy
from headrace.producer.client import Client
from headrace.producer.client_errors import InvalidRequest, ModelNotServed, RequestIdTaken, UnknownRequest
from headrace.producer.gateway.server import Gateway
from headrace.producer.gateway.settings import GatewaySettings
from tests.unit.gateway.fake_broker import FakeBroker

HUGE = "x" * (20 << 20)
QUICK = RetryPolicy(first_s=0.001, longest_s=0.01, patience_s=5)
STARTED = Started(1, "c", "p", 0, b"", "f")


@asynccontextmanager
async def gateway(broker: FakeBroker, **settings: Any) -> AsyncIterator[tuple[Gateway, int]]:
    served = Gateway(broker, GatewaySettings.model_validate({"broker": "redis://x", "port": 0, **settings}))
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


async def test_who_watches_on_behind_the_end_is_told_nothing_more() -> None:
    broker = FakeBroker()
    await broker.write("r", STARTED, Delta(1, 0, (5,), "Hi"), Finished(1, "stop"))
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        whole = [event async for event in client.watch("r")]
        assert [event async for event in client.watch("r", whole[-1].cursor)] == []


async def test_an_event_of_any_length_reaches_its_reader() -> None:
    broker = FakeBroker()
    prompt = tuple(TokenLogprobs(n, -1.0, tuple((n, -1.0) for _ in range(20))) for n in range(90_000))
    first = Delta(1, 0, (5,), "Hi", prompt_logprobs=prompt)
    await broker.write("r", STARTED, first, Finished(1, "stop"))
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        events = [event async for event in client.watch("r")]
    assert events[1].ByteSize() > 9 << 20
    assert events[-1].WhichOneof("kind") == "finished"


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


@pytest.mark.slow  # the gateway asks for a wait of a second
async def test_a_full_gateway_is_waited_for_and_takes_the_next_when_one_has_ended() -> None:
    broker = FakeBroker()
    async with (
        gateway(broker, limits={"max_requests": 1}) as (_, port),
        Client(f"127.0.0.1:{port}", policy=QUICK) as client,
    ):
        first = asyncio.create_task(client.complete("Hi", request_id="first"))
        await broker.publish_seen.wait()
        second = asyncio.create_task(client.complete("Hi", request_id="second", timeout_s=30))
        await asyncio.sleep(0.05)
        assert RequestRef("second") not in broker.messages
        await broker.write("first", STARTED, Finished(1, "stop"))
        await broker.write("second", STARTED, Finished(1, "stop"))
        assert [(await one).request_id for one in (first, second)] == ["first", "second"]


async def test_a_model_that_nobody_serves_is_told_with_those_that_are() -> None:
    broker = FakeBroker()
    broker.registered = [ConsumerEntry("c", "", tuple(Lane), Serves(("llama",), 1), 0)]
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        with pytest.raises(ModelNotServed, match=r"served: 'llama'"):
            await client.submit("Hi", model="gpt")
        await client.submit("Hi", model="llama")


async def test_a_prompt_of_20_mb_is_refused_by_its_size() -> None:
    broker = FakeBroker()
    async with gateway(broker) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        for call in (client.submit, client.complete):
            with pytest.raises(InvalidRequest, match=r"too large for the gateway.*vs\. 9437184"):
                await call(HUGE)
    assert broker.messages == {}


@pytest.mark.slow  # 100 MB over a socket
async def test_with_a_blob_store_it_is_taken_and_its_message_is_small(tmp_path: Path) -> None:
    broker = FakeBroker()
    settings = {"blobs": str(tmp_path)}
    async with gateway(broker, **settings) as (_, port), Client(f"127.0.0.1:{port}", policy=QUICK) as client:
        ref = RequestRef((await client.submit(HUGE)).request_id)
        with pytest.raises(InvalidRequest, match="too large for the gateway"):
            await client.submit(HUGE * 4)
    message = broker.messages[ref]
    assert message.body == b""
    assert message.claim is not None
    assert message.claim.size > len(HUGE)
