"""Readers that watch answers arrive over gRPC and refuse whatever a user should never see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sim import expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer
from headrace.v1 import inference_pb2 as pb
from headrace.v1.inference_pb2_grpc import InferenceStub

ANSWER_TIMEOUT_S = 120


@dataclass
class Seen:
    """What one reader saw of one answer."""

    prompt: str
    request_id: str = ""
    cursor: str = ""
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    next_seq: int = 0
    epoch: int = 0
    resumed: int = 0
    restarted: int = 0
    terminal: str = ""

    def read(self, event: pb.StreamEvent) -> None:
        """Takes an event and checks that it continues what was seen: no gap, no repeat, no older writer."""
        assert event.epoch >= self.epoch, f"epoch fell from {self.epoch} to {event.epoch}"
        assert not self.terminal, f"an event after {self.terminal}"
        self.request_id = event.request_id
        self.cursor = event.cursor or self.cursor
        self.epoch = event.epoch
        match event.WhichOneof("kind"):
            case "started":
                kept = event.started.kept
                assert kept == len(self.token_ids), f"kept {kept}, shown {len(self.token_ids)}"
                self.resumed += kept > 0
            case "delta":
                assert event.seq == self.next_seq, f"delta {event.seq} where {self.next_seq} was due"
                self.next_seq += 1
                self.text += event.delta.text
                self.token_ids += event.delta.token_ids
            case "restarted":
                self.restarted += 1
            case "finished":
                self.terminal = event.finished.reason
            case "failed":
                self.terminal = f"failed: {event.failed.code}: {event.failed.message}"


def expected_tokens(prompt: str, tokens: int, seed: int) -> list[int]:
    """The one answer that the simulated engine gives to this prompt, whoever runs which part of it."""
    prompt_ids = SimTokenizer().encode(prompt)
    return expected_answer(prompt_ids, SamplingParams(max_tokens=tokens, seed=seed), tokens)


async def watch_answer(target: str, prompt: str, tokens: int, seed: int) -> Seen:
    """Generates through the gateway at `target` and checks each event; re-attaches when a stream breaks."""
    seen = Seen(prompt)
    request = pb.InferenceRequest(
        prompt=prompt,
        lane=pb.LANE_BATCH,
        sampling_params=pb.SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=True),
    )
    async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(ANSWER_TIMEOUT_S):
        stub = InferenceStub(channel)
        await _read_all(stub.Generate(pb.GenerateRequest(request=request)), seen)
        while not seen.terminal:
            watch = pb.WatchRequest(request_id=seen.request_id, cursor=seen.cursor)
            await _read_all(stub.Watch(watch), seen)
    assert seen.terminal == "length", seen
    assert seen.token_ids == expected_tokens(prompt, tokens, seed), f"another text: {seen}"
    assert seen.text == SimTokenizer().decode(seen.token_ids)
    return seen


async def _read_all(
    call: AsyncIterator[pb.GenerateResponse] | AsyncIterator[pb.WatchResponse], seen: Seen
) -> None:
    try:
        async for response in call:
            seen.read(response.event)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE or not seen.request_id:
            raise
