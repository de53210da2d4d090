from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import pytest

from headrace.broker.events import Usage
from headrace.broker.ids import read_request_id
from headrace.broker.lines.request import Sampling
from headrace.broker.message import Lane
from headrace.producer.backoff import RetryPolicy
from headrace.producer.client import Client
from headrace.producer.client_errors import (
    ClientError,
    CursorGone,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotServed,
    NotAllowed,
    Overloaded,
    RequestFailed,
    RequestIdTaken,
    UnknownRequest,
    Unreachable,
)
from headrace.v1 import events_pb2
from headrace.v1 import inference_pb2 as pb
from tests.unit.producer.fake_gateway import Break, FakeGateway, Wait

QUICK = RetryPolicy(first_s=0.001, longest_s=0.002, patience_s=5)
AWAY = Break(grpc.StatusCode.UNAVAILABLE)
FULL = Break(grpc.StatusCode.RESOURCE_EXHAUSTED)


@asynccontextmanager
async def connected(gateway: FakeGateway, policy: RetryPolicy = QUICK) -> AsyncIterator[Client]:
    async with gateway.serve() as target, Client(target, policy=policy) as client:
        yield client


def accepted(duplicate: bool = False) -> pb.StreamEvent:
    return pb.StreamEvent(accepted=pb.StreamAccepted(duplicate=duplicate))


def started(cursor: str, kept: int = 0) -> pb.StreamEvent:
    return pb.StreamEvent(cursor=cursor, started=pb.StreamStarted(consumer="c", kept=kept))


def delta(seq: int, text: str) -> pb.StreamEvent:
    event = pb.StreamDelta(text=text, token_ids=[seq])
    return pb.StreamEvent(request_id="r", seq=seq, cursor=f"d{seq}", delta=event)


def finished() -> pb.StreamEvent:
    usage = events_pb2.Usage(prompt_tokens=3, completion_tokens=2)
    return pb.StreamEvent(
        request_id="r", cursor="end", finished=pb.StreamFinished(reason="stop", usage=usage)
    )


def failed(code: str) -> pb.StreamEvent:
    return pb.StreamEvent(cursor="end", failed=pb.StreamFailed(code=code, message="it failed", status=400))


def restarted() -> pb.StreamEvent:
    return pb.StreamEvent(restarted=pb.StreamRestarted(reason="lost"))


async def kinds(events: AsyncIterator[pb.StreamEvent]) -> list[str]:
    return [str(event.WhichOneof("kind")) async for event in events]


async def test_a_stream_yields_the_events_of_the_gateway() -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), started("s"), delta(0, "Hel"), delta(1, "lo"), finished()])
    async with connected(gateway) as client:
        assert await kinds(client.generate("Hi")) == ["accepted", "started", "delta", "delta", "finished"]


async def test_a_request_says_what_its_caller_said() -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), finished()])
    async with connected(gateway) as client:
        sampling = Sampling(max_tokens=5, temperature=0.0, stop=("x",))
        messages = [{"role": "user", "content": "Hi"}]
        await client.complete(messages, sampling=sampling, model="m", custom_id="c", lane=Lane.BATCH)
    request = gateway.calls[0].request
    assert (request.model, request.custom_id, request.lane) == ("m", "c", pb.LANE_BATCH)
    assert request.chat.messages[0].content == "Hi"
    assert (request.sampling_params.max_tokens, request.sampling_params.temperature) == (5, 0.0)
    assert not request.sampling_params.HasField("top_p")


@pytest.mark.parametrize(("prompt", "kind"), [("Hi", "prompt"), ([1, 2], "token_ids")])
async def test_a_prompt_is_text_or_token_ids(prompt: str | list[int], kind: str) -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), finished()])
    async with connected(gateway) as client:
        await client.complete(prompt)
    assert gateway.calls[0].request.WhichOneof("input") == kind


async def test_a_misspelt_option_is_named_and_nothing_is_sent() -> None:
    gateway = FakeGateway()
    misspelt: dict[str, Any] = {"max_tokenz": 2}
    async with connected(gateway) as client:
        with pytest.raises(InvalidRequest, match="max_tokenz"):
            await client.complete("x", **misspelt)
    assert gateway.calls == []


async def test_what_every_gateway_would_refuse_is_not_sent() -> None:
    gateway = FakeGateway()
    async with connected(gateway) as client:
        for sampling in (Sampling(temperature=9), Sampling(max_tokens=-1), Sampling(stop=("",))):
            with pytest.raises(InvalidRequest):
                await client.complete("x", sampling=sampling)
        with pytest.raises(InvalidRequest):
            await client.complete([])
    assert gateway.calls == []


async def test_a_stream_that_breaks_goes_on_behind_the_last_event_seen() -> None:
    gateway = FakeGateway()
    gateway.streams += [
        [accepted(), started("s"), delta(0, "a"), AWAY],
        [AWAY],
        [delta(1, "b"), AWAY],
        [delta(2, "c"), finished()],
    ]
    async with connected(gateway) as client:
        assert (await client.complete("Hi")).text == "abc"
    generate, *watches = gateway.calls
    assert [watch.cursor for watch in watches] == ["d0", "d0", "d1"]
    assert {watch.request_id for watch in watches} == {generate.request.request_id}


async def test_a_connection_that_breaks_does_not_cancel_the_request() -> None:
    gateway = FakeGateway()
    gateway.streams += [[accepted(), AWAY], [finished()]]
    async with connected(gateway) as client:
        await client.complete("Hi")
    assert gateway.calls[0].HasField("cancel_on_disconnect")
    assert not gateway.calls[0].cancel_on_disconnect


async def test_before_it_was_accepted_the_same_request_is_sent_again() -> None:
    gateway = FakeGateway()
    gateway.streams += [[AWAY], [FULL], [accepted(duplicate=True), delta(0, "a"), finished()]]
    async with connected(gateway) as client:
        completion = await client.complete("Hi")
    assert completion.text == "a"
    assert gateway.calls[0] == gateway.calls[1] == gateway.calls[2]
    assert read_request_id(gateway.calls[0].request.request_id) is not None


async def test_events_that_come_again_are_not_shown_again() -> None:
    gateway = FakeGateway()
    gateway.streams += [
        [accepted(), delta(0, "a"), delta(1, "b"), AWAY],
        [delta(0, "a"), delta(1, "b"), delta(2, "c"), finished()],
    ]
    async with connected(gateway) as client:
        texts = [
            event.delta.text async for event in client.generate("Hi") if event.WhichOneof("kind") == "delta"
        ]
    assert texts == ["a", "b", "c"]


async def test_a_stream_that_ends_without_an_end_is_taken_up_again() -> None:
    gateway = FakeGateway()
    gateway.streams += [[accepted(), delta(0, "a")], [delta(1, "b"), finished()]]
    async with connected(gateway) as client:
        assert (await client.complete("Hi")).text == "ab"


async def test_after_a_restart_the_answer_begins_anew() -> None:
    gateway = FakeGateway()
    gateway.streams.append(
        [accepted(), delta(0, "old"), restarted(), started("s2"), delta(1, "new"), finished()]
    )
    async with connected(gateway) as client:
        completion = await client.complete("Hi")
    assert (completion.text, completion.token_ids) == ("new", (1,))
    assert (completion.finish_reason, completion.usage) == ("stop", Usage(3, 2))


async def test_a_failed_request_raises_with_its_code_and_what_there_was() -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), delta(0, "half"), failed("context_length_exceeded")])
    async with connected(gateway) as client:
        with pytest.raises(RequestFailed, match="it failed") as caught:
            await client.complete("Hi")
    assert (caught.value.reason, caught.value.status, caught.value.partial) == (
        "context_length_exceeded",
        400,
        "half",
    )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.ALREADY_EXISTS, RequestIdTaken),
        (grpc.StatusCode.NOT_FOUND, UnknownRequest),
        (grpc.StatusCode.OUT_OF_RANGE, CursorGone),
        (grpc.StatusCode.UNAUTHENTICATED, NotAllowed),
        (grpc.StatusCode.INTERNAL, ClientError),
    ],
)
async def test_a_status_that_no_retry_mends_is_a_typed_error(
    code: grpc.StatusCode, error: type[ClientError]
) -> None:
    gateway = FakeGateway()
    gateway.streams.append([Break(code, "the sentence")])
    gateway.submits.append(Break(code, "the sentence"))
    async with connected(gateway) as client:
        with pytest.raises(error, match="the sentence") as caught:
            await client.complete("Hi")
        assert caught.value.code is code
        with pytest.raises(error, match="the sentence"):
            await client.submit("Hi")
    assert len(gateway.calls) == 2


async def test_a_message_that_is_too_large_is_not_sent_again() -> None:
    gateway = FakeGateway()
    full = Break(grpc.StatusCode.RESOURCE_EXHAUSTED, "SERVER: Received message larger than max (5 vs. 4)")
    gateway.submits.append(full)
    async with connected(gateway) as client:
        with pytest.raises(InvalidRequest, match="too large"):
            await client.submit("Hi")
    assert len(gateway.calls) == 1


async def test_patience_ends_with_a_typed_error() -> None:
    policy = RetryPolicy(first_s=0.001, longest_s=0.001, patience_s=0.02)
    gateway = FakeGateway()
    gateway.submits.extend([FULL] * 1000)
    gateway.streams.extend([[AWAY]] * 1000)
    async with connected(gateway, policy) as client:
        with pytest.raises(Overloaded):
            await client.submit("Hi")
        with pytest.raises(Unreachable, match="no gateway answers"):
            await client.complete("Hi")


async def test_a_service_that_is_full_is_asked_until_the_deadline_whatever_our_patience() -> None:
    policy = RetryPolicy(first_s=0.001, longest_s=0.001, patience_s=0.0)
    gateway = FakeGateway()
    gateway.submits += [FULL, FULL, pb.SubmitResponse(request_id="r")]
    gateway.streams += [[FULL], [accepted(), finished()]]
    async with connected(gateway, policy) as client:
        assert (await client.submit("Hi", timeout_s=30)).request_id == "r"
        await client.complete("Hi", timeout_s=30)
        gateway.submits.append(AWAY)
        with pytest.raises(Unreachable):
            await client.submit("Hi", timeout_s=30)


async def test_a_service_that_is_full_for_longer_than_we_have_ends_the_wait_at_once() -> None:
    gateway = FakeGateway()
    gateway.submits.append(Break(grpc.StatusCode.RESOURCE_EXHAUSTED, "the lane is full", retry_s=30))
    async with connected(gateway) as client:
        with pytest.raises(DeadlineExceeded, match="the lane is full"):
            await asyncio.wait_for(client.submit("Hi", timeout_s=20), 5)


async def test_a_model_that_nobody_serves_is_an_error_of_its_own() -> None:
    gateway = FakeGateway()
    gateway.submits.append(Break(grpc.StatusCode.NOT_FOUND, "served: 'a'", reason="MODEL_NOT_FOUND"))
    gateway.submits.append(Break(grpc.StatusCode.NOT_FOUND, "no such request", reason="REQUEST_UNKNOWN"))
    async with connected(gateway) as client:
        with pytest.raises(ModelNotServed, match="served: 'a'"):
            await client.submit("Hi", model="b")
        with pytest.raises(UnknownRequest):
            await client.submit("Hi")


async def test_a_queue_timeout_travels_with_the_request_and_must_make_sense() -> None:
    gateway = FakeGateway()
    gateway.submits.append(pb.SubmitResponse(request_id="r"))
    async with connected(gateway) as client:
        await client.submit("Hi", queue_timeout_s=1.5)
        assert gateway.calls[0].request.queue_timeout.ToMilliseconds() == 1500
        for senseless in (0, -1, float("nan"), float("inf")):
            with pytest.raises(InvalidRequest, match="queue_timeout_s"):
                await client.submit("Hi", queue_timeout_s=senseless)
    assert len(gateway.calls) == 1


async def test_the_ids_of_one_client_spread_over_all_places() -> None:
    gateway = FakeGateway()
    gateway.submits.extend([pb.SubmitResponse(request_id="r")] * 40)
    async with connected(gateway) as client:
        for _ in range(40):
            await client.submit("Hi")
    places = [read_request_id(call.request.request_id) for call in gateway.calls]
    assert len({place.place % 16 for place in places if place}) > 4


async def test_nobody_there_is_one_sentence() -> None:
    gateway = FakeGateway()
    async with gateway.serve() as target:
        pass
    async with Client(target, policy=RetryPolicy(0.001, 0.002, patience_s=0.05)) as client:
        with pytest.raises(Unreachable, match="is it running"):
            await client.submit("Hi")


async def test_the_wait_that_a_server_asks_for_is_kept() -> None:
    gateway = FakeGateway()
    gateway.submits += [
        Break(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_s=0.2),
        pb.SubmitResponse(request_id="r"),
    ]
    async with connected(gateway) as client:
        before = asyncio.get_running_loop().time()
        await client.submit("Hi")
        assert asyncio.get_running_loop().time() - before >= 0.2


async def test_a_deadline_bounds_the_retries_and_travels_with_the_request() -> None:
    gateway = FakeGateway()
    gateway.submits.extend([AWAY] * 1000)
    async with connected(gateway) as client:
        with pytest.raises(DeadlineExceeded, match="as the test wants"):
            await client.submit("Hi", timeout_s=0.05)
    assert gateway.calls[0].request.HasField("deadline")
    assert len({call.request.deadline.ToNanoseconds() for call in gateway.calls}) == 1


async def test_a_submit_that_was_retried_is_no_duplicate_of_itself() -> None:
    gateway = FakeGateway()
    gateway.submits += [AWAY, pb.SubmitResponse(request_id="r", duplicate=True)]
    gateway.submits += [pb.SubmitResponse(request_id="r", duplicate=True)]
    async with connected(gateway) as client:
        assert not (await client.submit("Hi")).duplicate
        assert (await client.submit("Hi", request_id="r")).duplicate
    assert gateway.calls[0] == gateway.calls[1]
    assert gateway.calls[0].request.lane == pb.LANE_STANDARD


@pytest.mark.parametrize(
    ("lane", "wish", "cancels"),
    [(Lane.INTERACTIVE, None, 1), (Lane.BATCH, None, 0), (Lane.INTERACTIVE, False, 0), (Lane.BATCH, True, 1)],
)
async def test_a_stream_that_is_left_early_cancels_its_request(
    lane: Lane, wish: bool | None, cancels: int
) -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), delta(0, "a"), Wait()])
    gateway.cancels.append(pb.CancelResponse(cancelled=True))
    async with connected(gateway) as client:
        stream = client.generate("Hi", lane=lane, cancel_on_abandon=wish)
        async for event in stream:
            if event.WhichOneof("kind") == "delta":
                break
        await stream.aclose()
    sent = [call.request_id for call in gateway.calls if isinstance(call, pb.CancelRequest)]
    assert sent == [gateway.calls[0].request.request_id] * cancels


async def test_a_stream_that_was_read_to_its_end_cancels_nothing() -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), finished()])
    gateway.cancels.append(pb.CancelResponse(cancelled=False))
    async with connected(gateway) as client, aclosing(client.generate("Hi")) as events:
        async for event in events:
            if event.WhichOneof("kind") == "finished":
                break
    assert len(gateway.calls) == 1


@pytest.mark.parametrize("end", [finished(), failed("internal_error")])
async def test_an_answer_that_was_awaited_whole_cancels_nothing(end: pb.StreamEvent) -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), delta(0, "a"), end])
    gateway.cancels.append(pb.CancelResponse(cancelled=False))
    async with connected(gateway) as client:
        with contextlib.suppress(RequestFailed):
            await client.complete("Hi")
    assert [type(call) for call in gateway.calls] == [pb.GenerateRequest]


async def test_a_cancelled_task_cancels_its_request() -> None:
    gateway = FakeGateway()
    gateway.streams.append([accepted(), Wait()])
    gateway.cancels.append(pb.CancelResponse(cancelled=True))
    async with connected(gateway) as client:
        seen = asyncio.Event()

        async def read() -> None:
            async for _ in client.generate("Hi"):
                seen.set()

        task = asyncio.create_task(read())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert isinstance(gateway.calls[-1], pb.CancelRequest)


async def test_watch_begins_at_the_beginning_or_behind_a_cursor() -> None:
    gateway = FakeGateway()
    gateway.streams += [[delta(0, "a"), finished()], [delta(1, "b"), finished()]]
    async with connected(gateway) as client:
        assert await kinds(client.watch("r")) == ["delta", "finished"]
        assert await kinds(client.watch("r", "d0")) == ["delta", "finished"]
    assert [call.cursor for call in gateway.calls] == ["", "d0"]


async def test_cancel_tells_whether_there_was_something_to_stop() -> None:
    gateway = FakeGateway()
    gateway.cancels += [AWAY, pb.CancelResponse(cancelled=True), pb.CancelResponse(cancelled=False)]
    async with connected(gateway) as client:
        assert await client.cancel("r")
        assert not await client.cancel("r")
