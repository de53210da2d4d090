"""From an `InferenceRequest` to the message that goes on the queue, or the reason why not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headrace.broker.lines.protobuf import from_message
from headrace.broker.lines.request import LineError
from headrace.broker.message import PROTOBUF, Lane, Message
from headrace.producer.gateway.status import Refusal, invalid, too_late
from headrace.v1 import inference_pb2 as pb

# No "/": ids with one are positions, which the broker gives to requests that came without an id.
REQUEST_ID = re.compile(r"[A-Za-z0-9._:@+=~-]{1,200}")
LONGEST_DURATION_S = 315_576_000_000  # of google.protobuf.Duration
TRACE_HEADERS = frozenset({"traceparent", "tracestate"})

_LANES = {
    pb.LANE_INTERACTIVE: Lane.INTERACTIVE,
    pb.LANE_STANDARD: Lane.STANDARD,
    pb.LANE_BATCH: Lane.BATCH,
    pb.LANE_BACKGROUND: Lane.BACKGROUND,
}


def to_message(
    request: pb.InferenceRequest,
    *,
    default_lane: Lane,
    now_ms: int,
    stream: bool = False,
    rpc_seconds_left: float | None = None,
    metadata: Iterable[tuple[str, str | bytes]] = (),
) -> Message | Refusal:
    """The message to publish, but for its pool, and for its id when the request has none (see `intake`).

    Its deadline is the earlier one of the request's own and the call's (`rpc_seconds_left`). The body is
    the canonical content: what the message's headers carry (id, lane, times) is cleared, so that the same
    content has the same bytes however it was sent.
    """
    if request.lane != pb.LANE_UNSPECIFIED and request.lane not in _LANES:
        return invalid(f"lane {request.lane} is not known; use a value of the enum Lane", "request.lane")
    if request.request_id and not REQUEST_ID.fullmatch(request.request_id):
        return invalid(
            "request_id must be 1 to 200 letters, digits or any of . _ : @ + = ~ -", "request.request_id"
        )
    try:
        deadline_ms = earliest_deadline(request, now_ms, rpc_seconds_left)
    except ValueError:
        return invalid(
            "deadline must be a time from the year 1 to 9999, nanos 0 to 999,999,999", "request.deadline"
        )
    if deadline_ms is not None and deadline_ms <= now_ms:
        return too_late()
    try:
        timeout_ms = queue_timeout_ms(request)
    except ValueError as error:
        return invalid(f"queue_timeout must be {error}", "request.queue_timeout")
    content = canonical(request)
    parsed = from_message(content)
    if isinstance(parsed, LineError):
        return invalid(parsed.message, parsed.param, parsed.code.upper())
    return Message(
        body=content.SerializeToString(deterministic=True),
        request_id=request.request_id or None,
        lane=_LANES.get(request.lane, default_lane),
        content_type=PROTOBUF,
        deadline_ms=deadline_ms,
        stream=stream,
        queue_timeout_ms=timeout_ms,
        headers={key: value for key, value in metadata if key in TRACE_HEADERS and isinstance(value, str)},
    )


def canonical(request: pb.InferenceRequest) -> pb.InferenceRequest:
    """What is asked, without how it travels."""
    content = pb.InferenceRequest()
    content.CopyFrom(request)
    for routed in ("request_id", "lane", "deadline", "queue_timeout"):
        content.ClearField(routed)
    return content


def earliest_deadline(
    request: pb.InferenceRequest, now_ms: int, rpc_seconds_left: float | None
) -> int | None:
    """Unix milliseconds, or None where neither the request nor the call has a deadline; ValueError for a
    timestamp outside its type's range."""
    deadlines = []
    if request.HasField("deadline"):
        deadlines.append(request.deadline.ToMilliseconds())
    if rpc_seconds_left is not None:
        deadlines.append(now_ms + int(rpc_seconds_left * 1000))
    return min(deadlines, default=None)


def queue_timeout_ms(request: pb.InferenceRequest) -> int | None:
    """Milliseconds, rounded up; None where there is none. ValueError for one that makes no sense: with what
    it must be."""
    if not request.HasField("queue_timeout"):
        return None
    seconds, nanos = request.queue_timeout.seconds, request.queue_timeout.nanos
    if not 0 <= nanos < 10**9:
        raise ValueError("a time whose nanos are 0 to 999,999,999")
    nanoseconds = seconds * 10**9 + nanos
    if nanoseconds <= 0:
        raise ValueError("a time above zero")
    if seconds > LONGEST_DURATION_S:
        raise ValueError(f"at most {LONGEST_DURATION_S:,} seconds (10,000 years)")
    return int(-(-nanoseconds // 10**6))
