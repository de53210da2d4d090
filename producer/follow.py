"""Follows one request's stream through every break, so that its reader sees one unbroken answer.

| the stream ends with          | then                                                               |
|-------------------------------|--------------------------------------------------------------------|
| `finished`, `failed`          | done                                                               |
| a retryable status, before `accepted` | Generate again, under the same id: the same request        |
| a retryable status, after it  | Watch from the last cursor                                         |
| no terminal event             | likewise                                                           |
| nothing, behind a cursor      | done: it was that of the end                                       |
| another status                | a typed error                                                      |
| patience or time over         | a typed error                                                      |
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import grpc.aio

from headrace.producer.backoff import Backoff, RetryPolicy
from headrace.producer.client_errors import (
    DeadlineExceeded,
    Unreachable,
    from_rpc,
    is_overload,
    is_retryable,
    retry_delay,
)
from headrace.producer.client_request import Deadline
from headrace.v1 import inference_pb2 as pb
from headrace.v1 import inference_pb2_grpc

Stream: TypeAlias = grpc.aio.UnaryStreamCall[Any, Any]


class Follower:
    """One reader of one request. `generate`: the call that submits it first; without, it is only watched."""

    def __init__(
        self,
        stub: inference_pb2_grpc.InferenceStub,
        request_id: str,
        policy: RetryPolicy,
        deadline: Deadline | None = None,
        *,
        generate: pb.GenerateRequest | None = None,
        cursor: str = "",
    ) -> None:
        self._stub = stub
        self._request_id = request_id
        self._backoff = Backoff(policy)
        self._deadline = deadline or Deadline(None)
        self._generate = generate
        self._cursor = cursor
        self._accepted = False
        self._next_seq = 0
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether the terminal event was given, or stands before the cursor."""
        return self._ended

    async def events(self) -> AsyncGenerator[pb.StreamEvent]:
        """Each event once, up to and including the terminal one."""
        while not self._ended:
            call, silent = self._open(), True
            try:
                async for message in call:
                    silent = False
                    if self._is_new(message.event):
                        self._backoff.reset()
                        yield message.event
            except grpc.aio.AioRpcError as error:
                await pause(error, self._backoff, self._deadline)
            else:
                # A gateway ends a stream in order only where the log has ended.
                self._ended = self._ended or (silent and self._cursor != "")
                await self._pause_after_early_end()
            finally:
                call.cancel()

    def _open(self) -> Stream:
        timeout = self._deadline.call_timeout()
        stream: Stream
        if self._generate is not None and not self._accepted:
            stream = self._stub.Generate(self._generate, timeout=timeout)
        else:
            watch = pb.WatchRequest(request_id=self._request_id, cursor=self._cursor)
            stream = self._stub.Watch(watch, timeout=timeout)
        return stream

    def _is_new(self, event: pb.StreamEvent) -> bool:
        """Takes note of an event; False for one that was shown before the stream broke."""
        kind = event.WhichOneof("kind")
        self._cursor = event.cursor or self._cursor
        if kind == "accepted":
            first, self._accepted = not self._accepted, True
            return first
        if kind == "delta":
            if event.seq < self._next_seq:
                return False
            self._next_seq = event.seq + 1
        self._ended = kind in ("finished", "failed")
        return kind is not None

    async def _pause_after_early_end(self) -> None:
        if self._ended:
            return
        wait = self._backoff.next_wait()
        if wait is None:
            raise Unreachable("the stream ended again and again before the answer was complete")
        await asyncio.sleep(wait)


async def pause(error: grpc.aio.AioRpcError, backoff: Backoff, deadline: Deadline) -> None:
    """Waits until the call may be tried again; raises the typed error where that is of no use.

    A service that is full has said when to come back, and is asked until the deadline where there is one; all
    other troubles try our patience.
    """
    if not is_retryable(error):
        raise from_rpc(error) from error
    wait = backoff.next_wait(retry_delay(error), for_ever=is_overload(error) and deadline.is_set)
    if wait is None:
        raise from_rpc(error) from error
    if wait > deadline.seconds_left:
        message = f"no answer within the time given; the last problem was: {error.details()}"
        raise DeadlineExceeded(message, error.code()) from error
    await asyncio.sleep(wait)
