"""The error table: what a caller is told when a call cannot be answered, as gRPC status and details.

Details follow the `google.rpc` error model (trailer `grpc-status-details-bin`): `ErrorInfo` with a reason
that machines can read, `BadRequest` with the offending field, and `RetryInfo` where a retry is worth it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message as Proto
from google.rpc import error_details_pb2, status_pb2

from headrace.broker.blobs import BlobRefused, BlobUnreachable
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable, TooLarge, UnknownCursor
from headrace.broker.lines.refused import shown

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

DOMAIN = "headrace"
DETAILS_TRAILER = "grpc-status-details-bin"
RETRY_AFTER_MS = 1000
# Whole ids of the usual lengths. Status and details travel in trailers, of which clients take a few KiB.
LONGEST_SHOWN = 220
MOST_MODELS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not answered: status code, a sentence, and the machine-readable reason.

    `param` names the offending field of the request. `retry_after_ms` asks the caller to come back. `facts`
    go with the reason, for machines.
    """

    code: grpc.StatusCode
    message: str
    reason: str
    param: str | None = None
    retry_after_ms: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


def invalid(message: str, param: str | None = None, reason: str = "INVALID_REQUEST") -> Refusal:
    return Refusal(grpc.StatusCode.INVALID_ARGUMENT, message, reason, param)


def _shown(request_id: str) -> str:
    return shown(request_id, LONGEST_SHOWN)


def taken(request_id: str) -> Refusal:
    message = f"the id {_shown(request_id)} belongs to a request with other content; choose another id"
    return Refusal(grpc.StatusCode.ALREADY_EXISTS, message, "REQUEST_ID_TAKEN", "request.request_id")


def unknown(request_id: str) -> Refusal:
    message = f"no request with the id {_shown(request_id)} is known; was it submitted to this broker?"
    return Refusal(grpc.StatusCode.NOT_FOUND, message, "REQUEST_UNKNOWN", "request_id")


def not_served(model: str, served: Sequence[str]) -> Refusal:
    names = ", ".join(shown(name, LONGEST_SHOWN // 4) for name in served[:MOST_MODELS_SHOWN])
    more = f" and {len(served) - MOST_MODELS_SHOWN} more" if len(served) > MOST_MODELS_SHOWN else ""
    message = f"the model {_shown(model)} is not served here; served: {names}{more}"
    return Refusal(grpc.StatusCode.NOT_FOUND, message, "MODEL_NOT_FOUND", "request.model")


def exhausted(message: str, reason: str, retry_after_ms: int, facts: Mapping[str, str]) -> Refusal:
    """No room now; there will be."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return Refusal(code, message, reason, retry_after_ms=retry_after_ms, facts=facts)


def too_late() -> Refusal:
    message = "the deadline has passed already; nothing was submitted"
    return Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, message, "DEADLINE_PASSED", "request.deadline")


def draining() -> Refusal:
    message = "the gateway is shutting down; go on with Watch from the last cursor on another one"
    return Refusal(grpc.StatusCode.UNAVAILABLE, message, "DRAINING", retry_after_ms=RETRY_AFTER_MS)


def log_ended_early() -> Refusal:
    message = "the log stopped before the answer was complete; go on with Watch from the last cursor"
    return Refusal(grpc.StatusCode.UNAVAILABLE, message, "LOG_MOVED", retry_after_ms=RETRY_AFTER_MS)


def from_broker(error: BrokerError) -> Refusal:
    """The most specific row that fits."""
    sentence = str(error)
    match error:
        case BlobRefused():
            return invalid(sentence, "request", "BODY_REFUSED")
        case TooLarge():
            return invalid(sentence, "request", "REQUEST_TOO_LARGE")
        case BlobUnreachable():
            code = grpc.StatusCode.UNAVAILABLE
            return Refusal(code, sentence, "BLOBS_UNAVAILABLE", retry_after_ms=RETRY_AFTER_MS)
        case BrokerUnavailable():
            code = grpc.StatusCode.UNAVAILABLE
            return Refusal(code, sentence, "BROKER_UNAVAILABLE", retry_after_ms=RETRY_AFTER_MS)
        case UnknownCursor():
            return Refusal(grpc.StatusCode.OUT_OF_RANGE, sentence, "UNKNOWN_CURSOR", "cursor")
        case BrokerRefused():
            return Refusal(grpc.StatusCode.FAILED_PRECONDITION, sentence, "BROKER_REFUSED")
    return Refusal(grpc.StatusCode.INTERNAL, sentence, "BROKER_ERROR")


def rich_status(refusal: Refusal) -> status_pb2.Status:
    """The refusal as `google.rpc.Status`."""
    info = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=refusal.reason, metadata=refusal.facts)
    parts: list[Proto] = [info]
    if refusal.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=refusal.param, description=refusal.message
        )
        parts.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if refusal.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(refusal.retry_after_ms)
        parts.append(error_details_pb2.RetryInfo(retry_delay=delay))
    details = [any_pb2.Any() for _ in parts]
    for packed, part in zip(details, parts, strict=True):
        packed.Pack(part)
    return status_pb2.Status(code=refusal.code.value[0], message=refusal.message, details=details)


async def abort(context: Context, refusal: Refusal) -> NoReturn:
    """Ends the call with the refusal; never returns."""
    trailer = (DETAILS_TRAILER, rich_status(refusal).SerializeToString())
    await context.abort(refusal.code, refusal.message, (trailer,))
    raise AssertionError("abort raises")
