"""What is no message at all: told to the caller like any other bad request.

Without this gRPC answers UNKNOWN, with a Python exception's text, and writes a trace to the log for each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

from headrace.producer.gateway import status
from headrace.producer.gateway.status import Context

Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]


class RefuseUndecodable(grpc.aio.ServerInterceptor):
    """INVALID_ARGUMENT for bytes that are no message of the call, in the calls of one service."""

    def __init__(self, service: str) -> None:
        self._prefix = f"/{service}/"

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(self._prefix):
            return handler
        make: Any = grpc.unary_unary_rpc_method_handler
        behaviour: Any = handler.unary_unary
        if handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        decode = handler.request_deserializer
        return make(_refusing(behaviour), lambda raw: _decoded(decode, raw), handler.response_serializer)


def _decoded(decode: Any, raw: bytes) -> object:
    try:
        return decode(raw)
    except DecodeError as error:
        return error


def _refusing(behaviour: Behaviour) -> Behaviour:
    async def answer(request: object, context: Context) -> object:
        if isinstance(request, DecodeError):
            what = "text that is not UTF-8" if "UTF-8" in str(request) else "no such message"
            await status.abort(context, status.invalid(f"the request's bytes hold {what}"))
        return await behaviour(request, context)

    return answer
