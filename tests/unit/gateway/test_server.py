"""The four calls over a real channel, with a log that the test writes."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, TypeVar

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message as Proto
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from msgspec import structs
from pydantic import SecretStr

from headrace.broker.events import Delta, Finished, Started
from headrace.broker.message import Lane, RequestRef
from headrace.producer.gateway.health import HealthMonitor
from headrace.producer.gateway.server import Gateway, GatewayError
from headrace.producer.gateway.settings import GatewaySettings
from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.unit.gateway.fake_broker import FakeBroker

pytestmark = pytest.mark.usefixtures("a_short_look")

Detail = TypeVar("Detail", bound=Proto)

STARTED = Started(1, "consumer-1", "queue/1", seed=0, body_hash=b"", fingerprint="f")
HEL, LO, FINISHED = Delta(1, 0, (1,), "Hel"), Delta(1, 1, (2,), "lo"), Finished(1, "stop")


def request(request_id: str = "r1", prompt: str = "Hi", **fields: Any) -> pb.InferenceRequest:
    return pb.InferenceRequest(request_id=request_id, prompt=prompt, **fields)


def generate(request_id: str = "r1", **fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(request=request(request_id), **fields)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that a unary call, or the first read of a stream, ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call if isinstance(call, grpc.aio.UnaryUnaryCall) else call.read())
    return caught.value


def details(error: grpc.aio.AioRpcError, kind: type[Detail]) -> list[Detail]:
    trailers = dict(error.trailing_metadata() or ())
    found = []
    for packed in status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details:
        detail = kind()
        if packed.Unpack(detail):
            found.append(detail)
    return found


async def rest(call: Any) -> list[str | None]:
    """The kinds of the events that are still to come."""
    kinds = []
    while (response := await call.read()) is not grpc.aio.EOF:
        kinds.append(response.event.WhichOneof("kind"))
    return kinds


# ---------------------------------------------------------------------------------------------- streaming


async def test_generate_streams_accepted_first_and_ends_with_the_terminal_event(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    call = stub.Generate(generate())
    first = await call.read()
    assert first.event.accepted == pb.StreamAccepted(duplicate=False)
    assert first.event.request_id == "r1"
    await broker.write("r1", STARTED, HEL, LO, FINISHED)
    assert await rest(call) == ["started", "delta", "delta", "finished"]
    assert await call.code() is grpc.StatusCode.OK
    assert broker.cancelled == []


async def test_generate_asks_for_prompt_deltas_in_the_interactive_lane(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    call = stub.Generate(generate(), timeout=30)
    await call.read()
    message = broker.messages[RequestRef("r1")]
    assert message.stream
    assert message.lane is Lane.INTERACTIVE
    assert message.deadline_ms is not None


async def test_generate_again_under_the_same_id_shows_the_same_answer(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    await stub.Submit(pb.SubmitRequest(request=request()))
    await broker.write("r1", STARTED, HEL, LO, FINISHED)
    events = [response.event async for response in stub.Generate(generate())]
    assert events[0].accepted.duplicate
    assert "".join(event.delta.text for event in events) == "Hello"


async def test_watch_goes_on_behind_the_cursor(stub: InferenceStub, broker: FakeBroker) -> None:
    await broker.write("r1", STARTED, HEL, LO, FINISHED)
    whole = [response.event async for response in stub.Watch(pb.WatchRequest(request_id="r1"))]
    for seen, event in enumerate(whole, 1):
        request_ = pb.WatchRequest(request_id="r1", cursor=event.cursor)
        assert [response.event async for response in stub.Watch(request_)] == whole[seen:]


async def test_a_reader_that_does_not_read_stops_its_own_stream_only(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    pieces = [Delta(1, seq, (seq,), "x" * 20_000) for seq in range(400)]
    await broker.write("slow", STARTED, *pieces, FINISHED)
    await broker.write("quick", STARTED, HEL, LO, FINISHED)
    slow = stub.Watch(pb.WatchRequest(request_id="slow"))
    await slow.read()
    quick = [response async for response in stub.Watch(pb.WatchRequest(request_id="quick"))]
    assert len(quick) == 4
    assert broker.reads < 200, "the gateway read ahead of a reader without bound"
    assert len(await rest(slow)) == 401


# --------------------------------------------------------------------------------------------- disconnects


async def test_an_interactive_request_is_cancelled_when_its_stream_is_dropped(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    call = stub.Generate(generate())
    await call.read()
    call.cancel()
    await asyncio.wait_for(broker.cancel_seen.wait(), 5)
    assert broker.cancelled == [RequestRef("r1")]
    assert broker.log(RequestRef("r1")).left.is_set()


async def test_a_reader_that_leaves_while_its_request_is_published_leaves_nothing_behind(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    broker.publish_gate.clear()
    call = stub.Generate(generate())
    reading = asyncio.ensure_future(call.read())
    await broker.publish_seen.wait()
    call.cancel()
    await asyncio.wait({reading})
    assert broker.cancelled == []
    broker.publish_gate.set()
    await asyncio.wait_for(broker.cancel_seen.wait(), 5)
    assert broker.cancelled == [RequestRef("r1")]
    assert RequestRef("r1") in broker.messages


@pytest.mark.parametrize(
    "request_",
    [
        pb.GenerateRequest(request=request(lane=pb.LANE_BATCH)),
        pb.GenerateRequest(request=request(), cancel_on_disconnect=False),
    ],
)
async def test_a_durable_request_outlives_its_stream(
    stub: InferenceStub, gateway: Gateway, broker: FakeBroker, request_: pb.GenerateRequest
) -> None:
    call = stub.Generate(request_)
    await call.read()
    call.cancel()
    await asyncio.wait_for(broker.log(RequestRef("r1")).left.wait(), 5)
    await gateway.drain(5)  # waits for what the gateway still does on behalf of the reader
    assert broker.cancelled == []


async def test_a_batch_request_is_cancelled_when_its_reader_asked_for_that(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    asked = pb.GenerateRequest(request=request(lane=pb.LANE_BATCH), cancel_on_disconnect=True)
    call = stub.Generate(asked)
    await call.read()
    call.cancel()
    await asyncio.wait_for(broker.cancel_seen.wait(), 5)


async def test_the_deadline_of_the_call_expires_the_request_and_does_not_cancel_it(
    stub: InferenceStub, gateway: Gateway, broker: FakeBroker
) -> None:
    call = stub.Generate(generate(), timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [response async for response in call]
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(broker.log(RequestRef("r1")).left.wait(), 5)
    await gateway.drain(5)  # waits for what the gateway still does on behalf of the reader
    assert broker.cancelled == []


# -------------------------------------------------------------------------------------------------- errors


async def test_the_same_id_with_other_content_is_refused(stub: InferenceStub) -> None:
    await stub.Submit(pb.SubmitRequest(request=request()))
    again = await stub.Submit(pb.SubmitRequest(request=request()))
    assert again.duplicate
    error = await refusal(stub.Submit(pb.SubmitRequest(request=request(prompt="Bye"))))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS
    error = await refusal(stub.Generate(pb.GenerateRequest(request=request(prompt="Bye"))))
    assert error.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_an_id_of_other_content_is_found_in_the_log_where_the_broker_did_not_look(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    theirs = structs.replace(STARTED, body_hash=b"of another body")
    await broker.write("r1", theirs, HEL, LO, FINISHED)
    call = stub.Generate(generate())
    assert (await call.read()).event.HasField("accepted")
    assert (await refusal(call)).code() is grpc.StatusCode.ALREADY_EXISTS
    assert broker.cancelled == []


async def test_a_bad_request_names_its_field(stub: InferenceStub, broker: FakeBroker) -> None:
    bad = request(sampling_params=pb.SamplingParams(max_tokens=0))
    error = await refusal(stub.Submit(pb.SubmitRequest(request=bad)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    [violations] = details(error, error_details_pb2.BadRequest)
    assert "max_tokens" in violations.field_violations[0].field
    [info] = details(error, error_details_pb2.ErrorInfo)
    assert (info.domain, info.reason) == ("headrace", "INVALID_REQUEST")
    assert broker.messages == {}


async def test_an_unknown_id_is_not_found(stub: InferenceStub) -> None:
    for call in (
        stub.Watch(pb.WatchRequest(request_id="nobody")),
        stub.Cancel(pb.CancelRequest(request_id="nobody")),
    ):
        assert (await refusal(call)).code() is grpc.StatusCode.NOT_FOUND


async def test_a_missing_id_is_an_invalid_argument(stub: InferenceStub) -> None:
    for call in (stub.Watch(pb.WatchRequest()), stub.Cancel(pb.CancelRequest())):
        assert (await refusal(call)).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_cursor_that_names_no_place_is_out_of_range(stub: InferenceStub, broker: FakeBroker) -> None:
    await broker.write("r1", STARTED)
    error = await refusal(stub.Watch(pb.WatchRequest(request_id="r1", cursor="elsewhere")))
    assert error.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_a_broker_that_is_away_is_worth_a_retry(stub: InferenceStub, broker: FakeBroker) -> None:
    broker.away = True
    for call in (
        stub.Submit(pb.SubmitRequest(request=request())),
        stub.Generate(generate()),
        stub.Watch(pb.WatchRequest(request_id="r1")),
        stub.Cancel(pb.CancelRequest(request_id="r1")),
    ):
        error = await refusal(call)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        [retry] = details(error, error_details_pb2.RetryInfo)
        assert retry.retry_delay.ToMilliseconds() > 0


async def test_a_broker_that_goes_away_in_mid_answer_cancels_nothing(
    stub: InferenceStub, broker: FakeBroker
) -> None:
    call = stub.Generate(generate())
    await call.read()
    broker.away = True
    await broker.write("r1", STARTED)
    assert (await refusal(call)).code() is grpc.StatusCode.UNAVAILABLE
    assert broker.cancelled == []


async def test_cancel_says_whether_it_came_in_time(stub: InferenceStub, broker: FakeBroker) -> None:
    await stub.Submit(pb.SubmitRequest(request=request()))
    assert (await stub.Cancel(pb.CancelRequest(request_id="r1"))).cancelled
    await broker.write("r1", STARTED, FINISHED)
    assert not (await stub.Cancel(pb.CancelRequest(request_id="r1"))).cancelled


async def test_a_message_above_the_limit_is_refused(channel: grpc.aio.Channel) -> None:
    too_long = pb.SubmitRequest(request=request(prompt="x" * (10 << 20)))
    error = await refusal(InferenceStub(channel).Submit(too_long))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x04\x1a\x02\xff\xfe"])
@pytest.mark.parametrize("method", ["Submit", "Generate", "Watch"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture, method: str, raw: bytes
) -> None:
    call: Any = channel.unary_unary if method == "Submit" else channel.unary_stream
    error = await refusal(call(f"/headrace.v1.Inference/{method}")(raw))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Traceback" not in caplog.text


async def test_a_very_long_id_is_not_echoed_whole(stub: InferenceStub) -> None:
    endless = "é" * 100_000
    for call in (
        stub.Watch(pb.WatchRequest(request_id=endless)),
        stub.Cancel(pb.CancelRequest(request_id=endless)),
    ):
        error = await refusal(call)
        assert error.code() is grpc.StatusCode.NOT_FOUND
        assert details(error, error_details_pb2.ErrorInfo)[0].reason == "REQUEST_UNKNOWN"


# ------------------------------------------------------------------------------------ health, life, death


async def health(channel: grpc.aio.Channel, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=name))).status)


@pytest.mark.parametrize("name", ["", "headrace.v1.Inference"])
async def test_health_follows_the_broker(channel: grpc.aio.Channel, broker: FakeBroker, name: str) -> None:
    assert await health(channel, name) == health_pb2.HealthCheckResponse.SERVING
    broker.away = True
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name))
    async for response in watch:
        if response.status == health_pb2.HealthCheckResponse.NOT_SERVING:
            break
    watch.cancel()


async def test_a_probe_without_an_answer_is_waited_for_in_place_of_the_next(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = asyncio.Event(), 0

    async def ping() -> None:
        nonlocal asked
        asked += 1
        await answered.wait()

    monkeypatch.setattr(broker, "ping", ping)
    monitor = HealthMonitor(broker, 0.001)
    assert [await monitor.check() for _ in range(3)] == [False] * 3
    assert asked == 1
    answered.set()
    await asyncio.sleep(0)
    assert await monitor.check()


async def test_reflection_names_the_service(channel: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    names = [service.name for service in (await call.read()).list_services_response.service]
    assert {"headrace.v1.Inference", "grpc.health.v1.Health"} <= set(names)


async def test_draining_says_not_serving_first_and_lets_streams_end(
    channel: grpc.aio.Channel, gateway: Gateway, broker: FakeBroker
) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    call = InferenceStub(channel).Generate(generate())
    await call.read()
    draining = asyncio.ensure_future(gateway.drain(10))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    await broker.write("r1", STARTED, HEL, LO, FINISHED)
    assert (await rest(call))[-1] == "finished"
    await asyncio.wait_for(draining, 5)


async def test_streams_that_outlive_the_grace_end_with_unavailable_and_their_requests_live_on(
    channel: grpc.aio.Channel, gateway: Gateway, broker: FakeBroker
) -> None:
    call = InferenceStub(channel).Generate(generate())
    await call.read()
    await asyncio.wait_for(gateway.drain(0.05), 5)
    error = await refusal(call)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert details(error, error_details_pb2.RetryInfo)
    assert broker.cancelled == []


async def test_a_port_that_is_taken_is_a_sentence(broker: FakeBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupant:
        port = occupant.getsockname()[1]
        gateway = Gateway(broker, GatewaySettings(broker=SecretStr("fake://"), port=port))
        with pytest.raises(GatewayError, match="choose another"):
            await gateway.start()


@pytest.mark.parametrize(("host", "says"), [("nowhere.invalid", "--host"), ("192.0.2.1", "--host")])
async def test_an_address_that_is_not_ours_is_a_sentence(broker: FakeBroker, host: str, says: str) -> None:
    gateway = Gateway(broker, GatewaySettings(broker=SecretStr("fake://"), host=host, port=0))
    with pytest.raises(GatewayError, match=says):
        await gateway.start()
