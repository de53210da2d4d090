"""The client library: submit requests to a gateway and read their answers, whatever breaks in between.

    async with Client("127.0.0.1:50051") as client:
        async for event in client.generate([{"role": "user", "content": "Why is the sky blue?"}]):
            print(event.delta.text, end="")
        print((await client.complete("Once upon a time", sampling={"max_tokens": 20})).text)

What a caller needs is named here: the client, what goes in, what comes out, and the errors.

A request has its id before it is sent, so sending it again is the same request. A stream that breaks is
taken up behind the last cursor seen, on whichever gateway answers:

    Generate ──► accepted  started  delta  delta ╳ UNAVAILABLE
    Watch(cursor of the last event) ─────────────► delta  finished
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self, TypeVar, Unpack

import grpc.aio

from headrace.broker.lines.request import Grammar, Sampling
from headrace.broker.message import Lane
from headrace.producer.backoff import Backoff, RetryPolicy
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
from headrace.producer.client_request import (
    Completion,
    Deadline,
    Prompt,
    RequestOptions,
    Submitted,
    checked_id,
    collect,
    inference_request,
)
from headrace.producer.follow import Follower, pause
from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc

__all__ = [
    "Client",
    "ClientError",
    "Completion",
    "CursorGone",
    "DeadlineExceeded",
    "Grammar",
    "InvalidRequest",
    "Lane",
    "ModelNotServed",
    "NotAllowed",
    "Overloaded",
    "Prompt",
    "RequestFailed",
    "RequestIdTaken",
    "RequestOptions",
    "RetryPolicy",
    "Sampling",
    "Submitted",
    "UnknownRequest",
    "Unreachable",
]

Answer = TypeVar("Answer")

CALL_TIMEOUT_S = 30.0


class Client:
    """A connection to a gateway; `target` is gRPC's (`host:port`, or `ipv4:a:1,b:2` for several).

    Every call raises a `ClientError` (see `client_errors`) once retries are of no use.
    """

    def __init__(self, target: str, *, policy: RetryPolicy | None = None) -> None:
        options = [
            # How much a gateway takes is for it to say: with a blob store that is more. And an answer is as
            # long as it is: the log probabilities of a long prompt come in one event.
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.keepalive_time_ms", 30_000),
            # The retries are ours; the channel shall only be quick to connect again.
            ("grpc.enable_retries", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        self._policy = policy or RetryPolicy()
        self._channel = grpc.aio.insecure_channel(target, options=options)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._cancelling: set[asyncio.Task[bool]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends what cancellations are still on their way, then hangs up."""
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        await self._channel.close()

    async def generate(
        self, prompt: Prompt, *, cancel_on_abandon: bool | None = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[pb.StreamEvent]:
        """Submits a request and yields its events up to `finished` or `failed`, each once.

        After `restarted`, drop the text shown so far. A loop that is left early cancels the request if
        `cancel_on_abandon` (default: on the interactive lane); a process that dies leaves it running.
        """
        options.setdefault("lane", Lane.INTERACTIVE)
        request = inference_request(prompt, options)
        interactive = options["lane"] == Lane.INTERACTIVE
        # Not the gateway's cancel_on_disconnect: a connection that breaks shall not end the request.
        message = pb.GenerateRequest(request=request, cancel_on_disconnect=False)
        deadline = Deadline(options.get("timeout_s"))
        follower = Follower(self._stub, request.request_id, self._policy, deadline, generate=message)
        try:
            async with aclosing(follower.events()) as events:
                async for event in events:
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            wanted = cancel_on_abandon or (cancel_on_abandon is None and interactive)
            if wanted and not follower.ended:
                self._cancel_in_background(request.request_id)
            raise

    async def complete(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Completion:
        """Submits a request and returns its whole answer; raises RequestFailed where there is none."""
        async with aclosing(self.generate(prompt, **options)) as events:
            return await collect(events)

    async def submit(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Submitted:
        """Puts a request on the queue; returns once it is durable. Read its answer with `watch`."""
        options.setdefault("lane", Lane.STANDARD)
        message = pb.SubmitRequest(request=inference_request(prompt, options))
        backoff, deadline = Backoff(self._policy), Deadline(options.get("timeout_s"))
        response = await self._call(
            lambda timeout: self._stub.Submit(message, timeout=timeout), backoff, deadline
        )
        # A duplicate of what an earlier attempt of this very call has sent is none.
        own = backoff.failures > 0 and "request_id" not in options
        return Submitted(response.request_id, response.duplicate and not own)

    async def watch(self, request_id: str, cursor: str = "") -> AsyncGenerator[pb.StreamEvent]:
        """Yields the events of a submitted request from its beginning, or behind `cursor`, to its end."""
        follower = Follower(self._stub, checked_id(request_id), self._policy, cursor=cursor)
        async with aclosing(follower.events()) as events:
            async for event in events:
                yield event

    async def cancel(self, request_id: str) -> bool:
        """Asks for a request to be stopped; False when it had ended before."""
        request = pb.CancelRequest(request_id=checked_id(request_id))
        response: pb.CancelResponse = await self._call(
            lambda timeout: self._stub.Cancel(request, timeout=timeout),
            Backoff(self._policy),
            Deadline(None),
        )
        return response.cancelled

    async def _call(
        self, call: Callable[[float | None], Awaitable[Answer]], backoff: Backoff, deadline: Deadline
    ) -> Answer:
        """A unary call, repeated while that is of use."""
        while True:
            try:
                return await call(deadline.call_timeout(CALL_TIMEOUT_S))
            except grpc.aio.AioRpcError as error:
                await pause(error, backoff, deadline)

    def _cancel_in_background(self, request_id: str) -> None:
        task = asyncio.get_running_loop().create_task(self.cancel(request_id))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
