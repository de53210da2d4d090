"""What can go wrong between a client and the service, as typed errors whose text is a sentence."""

from __future__ import annotations

import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from headrace.broker.events import Usage

DETAILS_TRAILER = "grpc-status-details-bin"
_RETRYABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED)
# What gRPC itself says of a message that will never pass, under the code of a full queue.
_TOO_LARGE = "larger than max"
# What it says, under codes that mean other things, of a connection that broke.
_BROKEN = ("Stream removed", "RST_STREAM")


class ClientError(Exception):
    """Base of all errors of the client. `code` is the gRPC status, None where there was no call."""

    def __init__(self, message: str, code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        self.code = code


class InvalidRequest(ClientError):
    """The request can never be accepted as it is."""


class RequestIdTaken(ClientError):
    """The id belongs to a request with other content."""


class UnknownRequest(ClientError):
    """The service knows no request with this id."""


class ModelNotServed(ClientError):
    """No consumer serves the model; the text lists those that are served."""


class CursorGone(ClientError):
    """The cursor names no place in the log any more; watch from the beginning."""


class NotAllowed(ClientError):
    """The service wants other credentials."""


class Overloaded(ClientError):
    """The service had no room for as long as we were willing to wait."""


class Unreachable(ClientError):
    """No gateway answered for as long as we were willing to wait."""


class DeadlineExceeded(ClientError):
    """The time that the caller gave is over."""


class RequestFailed(ClientError):
    """The request ended without an answer. `reason` is the machine-readable code of the failure, `status`
    its HTTP class (0: none), `partial` the text that was generated before it, `usage` what that cost."""

    def __init__(self, reason: str, message: str, status: int, partial: str, usage: Usage) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.partial = partial
        self.usage = usage


_CLASSES: dict[grpc.StatusCode, type[ClientError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: RequestIdTaken,
    grpc.StatusCode.NOT_FOUND: UnknownRequest,
    grpc.StatusCode.OUT_OF_RANGE: CursorGone,
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unreachable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}

# Reasons (`ErrorInfo`) that say more than their status.
_REASONS: dict[str, type[ClientError]] = {"MODEL_NOT_FOUND": ModelNotServed}


def from_rpc(error: grpc.aio.AioRpcError) -> ClientError:
    """The typed error of a call that failed."""
    code, details = error.code(), error.details() or ""
    if _TOO_LARGE in details:
        return InvalidRequest(f"the request is too large for the gateway: {details}", code)
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(f"no gateway answers ({details}); is it running, and is the address right?", code)
    kind = _REASONS.get(_reason(error)) or _CLASSES.get(code, ClientError)
    return kind(details or f"the call failed with {code.name}", code)


def is_overload(error: grpc.aio.AioRpcError) -> bool:
    """Whether the service had no room, and may have some later."""
    return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and is_retryable(error)


def is_retryable(error: grpc.aio.AioRpcError) -> bool:
    """Whether the same call may succeed later."""
    details = error.details() or ""
    if error.code() in _RETRYABLE:
        return _TOO_LARGE not in details
    return any(sign in details for sign in _BROKEN)


def retry_delay(error: grpc.aio.AioRpcError) -> float:
    """Seconds that the server asks us to wait (`RetryInfo` of the rich error model), else 0."""
    info = error_details_pb2.RetryInfo()
    if not _unpack(error, info):
        return 0.0
    seconds: float = info.retry_delay.ToTimedelta().total_seconds()
    return max(0.0, seconds)


def _reason(error: grpc.aio.AioRpcError) -> str:
    info = error_details_pb2.ErrorInfo()
    return str(info.reason) if _unpack(error, info) else ""


def _unpack(error: grpc.aio.AioRpcError, into: Message) -> bool:
    """Fills `into` with the detail of its type, if the error has one that can be read."""
    trailer = dict(error.trailing_metadata() or ()).get(DETAILS_TRAILER)
    if not isinstance(trailer, bytes):
        return False
    try:
        details = status_pb2.Status.FromString(trailer).details
        return any(detail.Unpack(into) for detail in details if detail.Is(into.DESCRIPTOR))
    except DecodeError:
        return False  # a trailer that we cannot read says nothing
