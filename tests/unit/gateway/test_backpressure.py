"""A gateway that is full: what it counts, what it says, and that nothing is counted for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2

from headrace.broker.events import Finished
from headrace.broker.message import DEFAULT_POOL, Lane, RequestRef
from headrace.broker.queue_policy import QueuePolicy
from headrace.producer.gateway.server import Gateway
from headrace.producer.gateway.settings import GatewaySettings
from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.unit.gateway.fake_broker import FakeBroker

pytestmark = pytest.mark.usefixtures("a_short_look")


@asynccontextmanager
async def serving(broker: FakeBroker, **settings: Any) -> AsyncIterator[InferenceStub]:
    gateway = Gateway(broker, GatewaySettings.model_validate({"broker": "fake://", "port": 0, **settings}))
    port = await gateway.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield InferenceStub(channel)
    finally:
        await gateway.drain(0)


def generate(request_id: str, **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(request=pb.InferenceRequest(request_id=request_id, prompt="Hi", **fields))


async def reason(call: Any) -> str:
    """Why the call is refused as too much; it must say when to come back."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call if isinstance(call, grpc.aio.UnaryUnaryCall) else call.read())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(caught.value.trailing_metadata() or ())
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details:
        detail.Unpack(info)
        detail.Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() > 0
    return str(info.reason)


async def test_a_stream_beyond_the_limit_is_refused_until_one_has_ended() -> None:
    broker = FakeBroker()
    async with serving(broker, limits={"max_requests": 2}) as stub:
        calls = [stub.Generate(generate(name)) for name in ("a", "b")]
        for call in calls:
            await call.read()
        assert await reason(stub.Generate(generate("c"))) == "GATEWAY_FULL"
        assert RequestRef("c") not in broker.messages
        await broker.write("a", Finished(1, "stop"))
        while await calls[0].read() is not grpc.aio.EOF:
            pass
        assert (await stub.Generate(generate("c")).read()).event.HasField("accepted")


async def test_estimated_tokens_count_as_well() -> None:
    broker = FakeBroker()
    sampling = pb.SamplingParams(max_tokens=60)
    async with serving(broker, limits={"max_tokens": 100}) as stub:
        await stub.Generate(generate("a", sampling_params=sampling)).read()
        refused = stub.Generate(generate("b", sampling_params=sampling))
        assert await reason(refused) == "GATEWAY_FULL"


@pytest.mark.parametrize("how", ["dropped", "invalid", "conflict", "broker away"])
async def test_whatever_ends_a_call_makes_room_again(how: str) -> None:
    broker = FakeBroker()
    async with serving(broker, limits={"max_requests": 1}) as stub:
        if how == "dropped":
            call = stub.Generate(generate("a"))
            await call.read()
            call.cancel()
            await asyncio.wait_for(broker.cancel_seen.wait(), 5)
        elif how == "invalid":
            await _refused(stub, generate("a", lane=99))
        elif how == "conflict":
            await stub.Submit(pb.SubmitRequest(request=pb.InferenceRequest(request_id="a", prompt="Bye")))
            await _refused(stub, generate("a"))
        else:
            broker.away = True
            await _refused(stub, generate("a"))
            broker.away = False
        assert (await stub.Generate(generate("next")).read()).event.HasField("accepted")


async def _refused(stub: InferenceStub, request: pb.GenerateRequest) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await stub.Generate(request).read()


async def test_submitted_requests_are_bounded_by_the_size_of_their_lane_alone() -> None:
    broker = FakeBroker()
    broker.waiting[DEFAULT_POOL] = {Lane.BATCH: 5}
    queue = {Lane.BATCH: QueuePolicy(size=7)}
    async with serving(broker, limits={"max_requests": 1}, queue=queue) as stub:
        for number in range(4):
            await stub.Submit(_submit(f"s{number}", pb.LANE_STANDARD))
        for number in range(2):
            await stub.Submit(_submit(f"b{number}", pb.LANE_BATCH))
        assert await reason(stub.Submit(_submit("b2", pb.LANE_BATCH))) == "LANE_FULL"
        assert await reason(stub.Generate(generate("g", lane=pb.LANE_BATCH))) == "LANE_FULL"
        assert (await stub.Generate(generate("g")).read()).event.HasField("accepted")


def _submit(request_id: str, lane: Any) -> pb.SubmitRequest:
    request = pb.InferenceRequest(request_id=request_id, prompt="Hi", lane=lane)
    return pb.SubmitRequest(request=request)
