"""What rank 0 tells the others, and what they answer, as MessagePack over a pipe each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message: be rank `rank` of the engine that `config_json` describes; `meeting_place` and times
    as `group.connect` takes them."""

    config_json: bytes
    rank: int
    meeting_place: str
    patience_s: float
    connect_s: float


class Tokens(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A chunk without what only its sampling needs."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]


class Compute(msgspec.Struct, frozen=True, tag=True):
    """The copies and the forward of a step; fields as in `StepPlan`."""

    step: int
    chunks: Sequence[Tokens]
    copies: Sequence[tuple[int, int]] = ()
    copies_out: Sequence[tuple[int, int]] = ()
    copies_in: Sequence[tuple[int, int]] = ()


class Score(msgspec.Struct, frozen=True, tag=True):
    """Logits for as many rows, which rank 0 hands out."""

    rows: int


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The process has started and goes to meet the others."""


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The share is loaded. What is told must be the same on all ranks."""

    fingerprint: str
    num_blocks: int
    num_host_slots: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """This rank cannot go on: why, in words. `by_user`: a sentence for the user, who can help it."""

    message: str
    by_user: bool = False


ToWorker: TypeAlias = Join | Compute | Score
FromWorker: TypeAlias = Joined | Loaded | Failed

_TO_WORKER: Final = msgspec.msgpack.Decoder(ToWorker)
_FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)
_PARAMS: Final = SamplingParams()


def encode(message: ToWorker | FromWorker) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_order(data: bytes) -> ToWorker:
    return _TO_WORKER.decode(data)


def decode_answer(data: bytes) -> FromWorker:
    return _FROM_WORKER.decode(data)


def order_of(plan: StepPlan) -> Compute:
    """What a plan asks of every rank."""
    chunks = [Tokens(chunk.token_ids, chunk.start, chunk.block_table) for chunk in plan.chunks]
    return Compute(plan.step, chunks, plan.copies, plan.copies_out, plan.copies_in)


def plan_of(order: Compute) -> StepPlan:
    """The plan again, as far as it is told: nothing in it samples."""
    chunks = [Chunk("", one.token_ids, one.start, one.block_table, False, _PARAMS) for one in order.chunks]
    return StepPlan(order.step, chunks, order.copies, order.copies_out, order.copies_in)
