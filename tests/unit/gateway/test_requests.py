"""What the gateway puts on the queue, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from headrace.broker.message import PROTOBUF, Lane, Message
from headrace.producer.gateway.requests import to_message
from headrace.producer.gateway.status import Refusal
from headrace.v1 import inference_pb2 as pb

NOW = 1_800_000_000_000


def chat(text: str = "Hello", **fields: object) -> pb.InferenceRequest:
    return pb.InferenceRequest(
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=text)]),
        **fields,  # type: ignore[arg-type]  # any field of the message
    )


def at(unix_ms: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(unix_ms)
    return stamp


def convert(
    request: pb.InferenceRequest,
    rpc_seconds_left: float | None = None,
    metadata: Iterable[tuple[str, str | bytes]] = (),
) -> Message | Refusal:
    return to_message(
        request,
        default_lane=Lane.STANDARD,
        now_ms=NOW,
        rpc_seconds_left=rpc_seconds_left,
        metadata=metadata,
    )


def accepted(request: pb.InferenceRequest, rpc_seconds_left: float | None = None) -> Message:
    message = convert(request, rpc_seconds_left)
    assert isinstance(message, Message)
    return message


def refused(request: pb.InferenceRequest) -> Refusal:
    refusal = convert(request)
    assert isinstance(refusal, Refusal)
    return refusal


def test_a_request_keeps_its_lane_and_its_id_and_may_come_without() -> None:
    message = accepted(chat(lane=pb.LANE_BATCH, request_id="mine"))
    assert (message.lane, message.request_id) == (Lane.BATCH, "mine")
    assert accepted(chat()).request_id is None
    assert message.content_type == PROTOBUF


def test_the_default_lane_applies_where_none_is_named() -> None:
    assert accepted(chat()).lane is Lane.STANDARD


def test_the_same_content_has_the_same_hash_whatever_its_id_lane_and_times() -> None:
    first = accepted(
        chat(
            request_id="a",
            lane=pb.LANE_BATCH,
            deadline=at(NOW + 5000),
            queue_timeout=Duration(seconds=3),
        )
    )
    second = accepted(chat(request_id="b"))
    other = accepted(chat("Bye", request_id="a"))
    assert first.body_hash == second.body_hash
    assert first.body_hash != other.body_hash


def test_the_body_on_the_queue_still_holds_the_prompt() -> None:
    body = pb.InferenceRequest.FromString(accepted(chat(request_id="a", custom_id="c")).body)
    assert body.chat.messages[0].content == "Hello"
    assert body.custom_id == "c"
    assert body.request_id == ""


@pytest.mark.parametrize(
    ("own_ms", "rpc_s", "expected"),
    [(None, None, None), (9000, None, 9000), (None, 4.0, 4000), (9000, 4.0, 4000), (3000, 4.0, 3000)],
)
def test_the_earlier_deadline_of_request_and_call_counts(
    own_ms: int | None, rpc_s: float | None, expected: int | None
) -> None:
    request = chat() if own_ms is None else chat(deadline=at(NOW + own_ms))
    assert accepted(request, rpc_s).deadline_ms == (None if expected is None else NOW + expected)


def test_a_deadline_that_has_passed_is_refused_as_such() -> None:
    assert refused(chat(deadline=at(NOW - 1))).code is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(("seconds", "nanos"), [(2**40, 0), (-(2**62), 0), (1, -5), (1, 2**30)])
def test_a_deadline_outside_the_calendar_is_refused_as_such(seconds: int, nanos: int) -> None:
    refusal = refused(chat(deadline=Timestamp(seconds=seconds, nanos=nanos)))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.param == "request.deadline"


@pytest.mark.parametrize(("seconds", "nanos", "ms"), [(3, 0, 3000), (0, 1_500_000, 2), (0, 1_000, 1)])
def test_a_queue_timeout_travels_in_whole_milliseconds(seconds: int, nanos: int, ms: int) -> None:
    assert accepted(chat(queue_timeout=Duration(seconds=seconds, nanos=nanos))).queue_timeout_ms == ms
    assert accepted(chat()).queue_timeout_ms is None


@pytest.mark.parametrize(
    ("seconds", "nanos", "why"),
    [
        (0, 0, "a time above zero"),
        (-1, 0, "a time above zero"),
        (0, -1, "a time whose nanos are 0 to 999,999,999"),
        (1, 2**30, "a time whose nanos are 0 to 999,999,999"),
        (2**62, 0, "at most 315,576,000,000 seconds"),
    ],
)
def test_a_queue_timeout_that_makes_no_sense_is_refused_with_the_reason(
    seconds: int, nanos: int, why: str
) -> None:
    refusal = refused(chat(queue_timeout=Duration(seconds=seconds, nanos=nanos)))
    assert (refusal.code, refusal.param) == (grpc.StatusCode.INVALID_ARGUMENT, "request.queue_timeout")
    assert refusal.message.startswith(f"queue_timeout must be {why}")


@pytest.mark.parametrize("request_id", ["a b", "queue/1-0", "x" * 201, "é", "a\n"])
def test_ids_that_cannot_be_ours_to_keep_are_refused(request_id: str) -> None:
    refusal = refused(chat(request_id=request_id))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.param == "request.request_id"


@pytest.mark.parametrize(
    "request_",
    [
        pb.InferenceRequest(),
        pb.InferenceRequest(chat=pb.Chat()),
        chat(sampling_params=pb.SamplingParams(max_tokens=0)),
        chat(sampling_params=pb.SamplingParams(temperature=-1)),
        chat(sampling_params=pb.SamplingParams(temperature=float("nan"))),
        chat(sampling_params=pb.SamplingParams(top_p=0)),
        chat(sampling_params=pb.SamplingParams(stop=[""])),
        chat(lane=77),
        chat(custom_id="c" * 513),
    ],
)
def test_content_that_no_consumer_could_run_is_refused_with_a_sentence(request_: pb.InferenceRequest) -> None:
    refusal = refused(request_)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert len(refusal.message) > 10


def test_the_trace_of_the_call_travels_and_other_metadata_does_not() -> None:
    metadata: list[tuple[str, str | bytes]] = [
        ("traceparent", "00-1-2-01"),
        ("authorization", "Bearer x"),
        ("traceparent-bin", b"x"),
    ]
    message = convert(chat(), metadata=metadata)
    assert isinstance(message, Message)
    assert message.headers == {"traceparent": "00-1-2-01"}
