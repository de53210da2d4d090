"""The four calls of `headrace.v1.Inference` over a broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from headrace.broker.contract import Broker, CancelResult, Published
from headrace.broker.errors import BrokerError
from headrace.broker.events import Logged
from headrace.broker.message import Lane, Message, RequestRef
from headrace.producer.gateway import status
from headrace.producer.gateway.disconnects import Disconnects
from headrace.producer.gateway.in_flight import InFlight
from headrace.producer.gateway.intake import Intake
from headrace.producer.gateway.limits import estimated_tokens
from headrace.producer.gateway.requests import to_message
from headrace.producer.gateway.status import Context, Refusal
from headrace.producer.gateway.stream import StreamView, stream_events
from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc

Write: TypeAlias = Callable[[pb.StreamEvent], Awaitable[None]]


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Answers calls until `close_streams`. A slow reader stops its own stream only: the write waits for
    it, and the broker's bounded buffers behind it fall back to re-reading the log."""

    def __init__(
        self, broker: Broker, intake: Intake, in_flight: InFlight, now_ms: Callable[[], int] = unix_ms
    ) -> None:
        self._broker = broker
        self._intake = intake
        self._in_flight = in_flight
        self._now_ms = now_ms
        self._closing = asyncio.Event()
        self._disconnects = Disconnects(broker, now_ms)

    async def close_streams(self) -> None:
        """Ends all streams with UNAVAILABLE, so that readers re-attach elsewhere; cancels no request."""
        self._disconnects.close()
        self._closing.set()
        await self._disconnects.finished()

    # ------------------------------------------------------------------------------------------- calls

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        message = to_message(
            request.request,
            default_lane=Lane.INTERACTIVE,
            now_ms=self._now_ms(),
            stream=True,
            rpc_seconds_left=context.time_remaining(),
            metadata=context.invocation_metadata() or (),
        )
        if isinstance(message, Refusal):
            await status.abort(context, message)
        tokens = estimated_tokens(request.request)
        if full := self._in_flight.enter(tokens):
            await status.abort(context, full)
        try:
            refusal = await self._generate(request, message, context)
        finally:
            self._in_flight.leave(tokens)
        if refusal is not None:
            await status.abort(context, refusal)

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitResponse:
        message = to_message(
            request.request,
            default_lane=Lane.STANDARD,
            now_ms=self._now_ms(),
            metadata=context.invocation_metadata() or (),
        )
        if isinstance(message, Refusal):
            await status.abort(context, message)
        published = await self._intake.publish(message, request.request.model)
        if isinstance(published, Refusal):
            await status.abort(context, published)
        return pb.SubmitResponse(request_id=published.ref.request_id, duplicate=published.duplicate)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        if not request.request_id:
            await status.abort(context, status.invalid("request_id is missing", "request_id"))
        ref = RequestRef(request.request_id)
        try:
            known = await self._broker.known(ref)
        except BrokerError as error:
            await status.abort(context, status.from_broker(error))
        if not known:
            await status.abort(context, status.unknown(request.request_id))
        view = StreamView(request.request_id, request.cursor)
        entries = self._broker.watch(ref, request.cursor)
        refusal = await self._stream(
            entries, view, lambda event: context.write(pb.WatchResponse(event=event))
        )
        if refusal is not None:
            await status.abort(context, refusal)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        if not request.request_id:
            await status.abort(context, status.invalid("request_id is missing", "request_id"))
        try:
            result = await self._broker.cancel(RequestRef(request.request_id))
        except BrokerError as error:
            await status.abort(context, status.from_broker(error))
        if result is CancelResult.UNKNOWN:
            await status.abort(context, status.unknown(request.request_id))
        return pb.CancelResponse(cancelled=result is CancelResult.MARKED)

    # -------------------------------------------------------------------------------------- streaming

    async def _generate(
        self, request: pb.GenerateRequest, message: Message, context: Context
    ) -> Refusal | None:
        # A task of its own: a reader that leaves meanwhile must not leave a request behind unnoticed.
        publishing = asyncio.ensure_future(self._intake.publish(message, request.request.model))
        orderly = False
        try:
            refusal = await self._stream_published(publishing, message, context)
            orderly = True
            return refusal
        finally:
            if not orderly:
                self._disconnects.left(request, message, publishing)

    async def _stream_published(
        self, publishing: asyncio.Future[Published | Refusal], message: Message, context: Context
    ) -> Refusal | None:
        published = await asyncio.shield(publishing)
        if isinstance(published, Refusal):
            return published
        request_id = published.ref.request_id
        view = StreamView(request_id, body_hash=message.body_hash)

        async def write(event: pb.StreamEvent) -> None:
            await context.write(pb.GenerateResponse(event=event))

        await write(view.accepted(published.duplicate))
        refusal = await self._stream(self._broker.watch(published.ref), view, write)
        # Kafka does not look an id up when something is published: only the log tells.
        return status.taken(request_id) if view.foreign else refusal

    async def _stream(self, entries: AsyncIterator[Logged], view: StreamView, write: Write) -> Refusal | None:
        """Writes the log to the reader until it ends, or until the gateway closes."""
        pump = asyncio.ensure_future(_pump(entries, view, write))
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait({pump, closing}, return_when=asyncio.FIRST_COMPLETED)
            return pump.result() if pump.done() else status.draining()
        finally:
            closing.cancel()
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)


async def _pump(entries: AsyncIterator[Logged], view: StreamView, write: Write) -> Refusal | None:
    try:
        async with contextlib.aclosing(stream_events(entries, view)) as events:
            async for event in events:
                await write(event)
    except BrokerError as error:
        return status.from_broker(error)
    return None if view.ended else status.log_ended_early()
