"""A gateway that follows a script: what each call does is written down by the test."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc


class Break(Exception):
    """A step of a script: the call ends here with this status."""

    def __init__(
        self,
        code: grpc.StatusCode,
        details: str = "as the test wants",
        retry_s: float | None = None,
        reason: str = "",
    ) -> None:
        self.code = code
        self.details = details
        self.retry_s = retry_s
        self.reason = reason

    async def abort(self, context: Any) -> None:
        plain = self.retry_s is None and not self.reason
        trailers = () if plain else (("grpc-status-details-bin", self._rich_status()),)
        await context.abort(self.code, self.details, trailers)

    def _rich_status(self) -> bytes:
        info = error_details_pb2.RetryInfo()
        info.retry_delay.FromMilliseconds(int((self.retry_s or 0) * 1000))
        details = [any_pb2.Any(), any_pb2.Any()]
        details[0].Pack(error_details_pb2.ErrorInfo(domain="headrace", reason=self.reason))
        details[1].Pack(info)
        status = status_pb2.Status(code=self.code.value[0], message=self.details, details=details)
        raw: bytes = status.SerializeToString()
        return raw


class Wait(Exception):
    """A step of a script: nothing more comes until the caller hangs up."""


Step = pb.StreamEvent | Break | Wait


class FakeGateway(inference_pb2_grpc.InferenceServicer):
    """Each call takes the next script of its kind; `calls` holds all requests as they came."""

    def __init__(self) -> None:
        self.streams: deque[list[Step]] = deque()
        self.submits: deque[pb.SubmitResponse | Break] = deque()
        self.cancels: deque[pb.CancelResponse | Break] = deque()
        self.calls: list[Any] = []
        self.times_remaining: list[float | None] = []

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        async for event in self._play(request, context):
            yield pb.GenerateResponse(event=event)

    async def Watch(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[pb.WatchResponse]:
        async for event in self._play(request, context):
            yield pb.WatchResponse(event=event)

    async def Submit(self, request: pb.SubmitRequest, context: Any) -> pb.SubmitResponse:
        response: pb.SubmitResponse = await self._answer(self.submits.popleft(), request, context)
        return response

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:
        response: pb.CancelResponse = await self._answer(self.cancels.popleft(), request, context)
        return response

    async def _play(self, request: Any, context: Any) -> AsyncIterator[pb.StreamEvent]:
        self._note(request, context)
        for step in self.streams.popleft():
            if isinstance(step, Break):
                await step.abort(context)
            elif isinstance(step, Wait):
                await asyncio.Event().wait()
            else:
                yield step

    async def _answer(self, answer: Any, request: Any, context: Any) -> Any:
        self._note(request, context)
        if isinstance(answer, Break):
            await answer.abort(context)
        return answer

    def _note(self, request: Any, context: Any) -> None:
        self.calls.append(request)
        self.times_remaining.append(context.time_remaining())

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listens on a free loopback port; yields the target."""
        server = grpc.aio.server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)
