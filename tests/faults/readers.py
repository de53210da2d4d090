"""Readers that watch answers arrive over gRPC and write down what they are shown.

They judge nothing: that is the checker's part. A stream that breaks is taken up again at any gateway, with
the last cursor; a publish without an answer is sent again, under the same id.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc

from headrace.broker.message import Lane
from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub
from tests.faults.checker.record import Kind, Shown, Transcript

ANSWER_TIMEOUT_S = 90.0
_AGAIN_S = 0.1
# What says nothing about the request: the gateway, or its broker, is away just now.
_PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
_WIRE_LANES = {
    Lane.INTERACTIVE: pb.LANE_INTERACTIVE,
    Lane.STANDARD: pb.LANE_STANDARD,
    Lane.BATCH: pb.LANE_BATCH,
    Lane.BACKGROUND: pb.LANE_BACKGROUND,
}
_KINDS: dict[str, Kind] = {
    "started": "started",
    "delta": "delta",
    "restarted": "restarted",
    "finished": "finished",
    "failed": "failed",
}


@dataclass(slots=True)
class Ask:
    """One request as its reader sends it."""

    request_id: str
    prompt: str
    tokens: int
    seed: int
    lane: Lane = Lane.BATCH
    deadline_s: float | None = None

    def message(self) -> pb.InferenceRequest:
        request = pb.InferenceRequest(
            request_id=self.request_id,
            prompt=self.prompt,
            lane=_WIRE_LANES[self.lane],
            sampling_params=pb.SamplingParams(max_tokens=self.tokens, seed=self.seed, ignore_eos=True),
        )
        if self.deadline_s is not None:
            request.deadline.FromNanoseconds(time.time_ns() + int(self.deadline_s * 1e9))
        return request


@dataclass(slots=True)
class Reader:
    """Watches one answer to its end. `targets`: the gateways there are, asked anew at every attachment.
    `on_event`: called with each event, before the next one is read; it may take its time. `too_late`: its
    deadline passed before a gateway said that it was accepted, so that nobody knows whether it was."""

    ask: Ask
    targets: Callable[[], Sequence[str]]
    on_event: Callable[[Shown], Awaitable[None]] | None = None
    accepted: bool = False
    too_late: bool = False
    attachments: int = 0
    cursor: str = ""
    shown: list[Shown] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.shown) and self.shown[-1].kind in ("finished", "failed")

    @property
    def owner(self) -> str:
        """Who runs the request, as far as its reader knows; '' for nobody yet."""
        return next((event.consumer for event in reversed(self.shown) if event.consumer), "")

    def transcript(self) -> Transcript:
        return Transcript(self.ask.request_id, tuple(self.shown), left=not self.ended)

    async def read(self) -> None:
        """Until the terminal event, or until it is too late to ask. Raises TimeoutError."""
        request = self.ask.message()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while not (self.ended or self.too_late):
                targets = self.targets()
                target = targets[self.attachments % len(targets)]
                self.attachments += 1
                await self._attach(target, request)

    async def _attach(self, target: str, request: pb.InferenceRequest) -> None:
        async with grpc.aio.insecure_channel(target, _OPTIONS) as channel:
            stub = InferenceStub(channel)
            try:
                if self.accepted:
                    watch = pb.WatchRequest(request_id=self.ask.request_id, cursor=self.cursor)
                    await self._read_all(stub.Watch(watch))
                else:
                    generate = pb.GenerateRequest(request=request, cancel_on_disconnect=False)
                    await self._read_all(stub.Generate(generate))
            except grpc.aio.AioRpcError as error:
                self.too_late = self.ask.deadline_s is not None and _is_too_late(error) and not self.accepted
                if error.code() not in _PASSING and not self.too_late:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _read_all(
        self, call: AsyncIterator[pb.GenerateResponse] | AsyncIterator[pb.WatchResponse]
    ) -> None:
        async for response in call:
            event = response.event
            self.cursor = event.cursor or self.cursor
            kind = event.WhichOneof("kind")
            if kind == "accepted":
                self.accepted = True
            if kind not in _KINDS:
                continue
            self.shown.append(_shown(_KINDS[kind], event))
            if self.on_event is not None:
                await self.on_event(self.shown[-1])


_OPTIONS = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500))


def _shown(kind: Kind, event: pb.StreamEvent) -> Shown:
    return Shown(
        kind=kind,
        epoch=event.epoch,
        seq=event.seq if kind == "delta" else 0,
        kept=event.started.kept,
        token_ids=tuple(event.delta.token_ids),
        text=event.delta.text,
        reason=event.finished.reason if kind == "finished" else event.failed.code,
        consumer=event.started.consumer,
        at_s=time.monotonic(),
    )


def _is_too_late(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
