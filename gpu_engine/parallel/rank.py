"""What a rank other than the first does: it computes what it is told, share by share."""

from __future__ import annotations

import gc
from typing import Self

import torch

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.parallel.decoder import SharedDecoder
from headrace.gpu_engine.parallel.group import RankGroup, connect
from headrace.gpu_engine.parallel.load import load_share, open_model
from headrace.gpu_engine.parallel.messages import (
    Compute,
    Join,
    Joined,
    Loaded,
    Score,
    decode_order,
    encode,
    plan_of,
)
from headrace.gpu_engine.parallel.worker import Pipe
from headrace.gpu_engine.runner import ModelRunner, make_runner


class Rank:
    """A share of the model, and the connection to the rank that says what to do with it."""

    def __init__(self, connection: Pipe, runner: ModelRunner, decoder: SharedDecoder) -> None:
        self._connection = connection
        self._runner = runner
        self._decoder = decoder

    @classmethod
    def join(cls, connection: Pipe, first: bytes) -> Self:
        """Does what the first message says: meets the other ranks, and loads the share. Raises PeersLost,
        ModelError, and ConnectionError."""
        order = decode_order(first)
        assert isinstance(order, Join)
        config = EngineConfig.model_validate_json(order.config_json)
        connection.send_bytes(encode(Joined()))
        rank = cls(connection, *_load(config, _meet(config, order)))
        gc.freeze()  # the model lives as long as the process: no collection need look at it
        runner = rank._runner
        connection.send_bytes(encode(Loaded(runner.fingerprint, runner.num_blocks, runner.num_host_slots)))
        return rank

    @torch.inference_mode()
    def obey(self) -> None:
        """Waits for one order and does it. Raises EOFError when rank 0 is gone, and PeersLost."""
        match decode_order(self._connection.recv_bytes()):
            case Compute() as order:
                plan = plan_of(order)
                self._decoder.keep_step(plan.num_tokens, lambda: self._runner.compute(plan))
            case Score(rows=rows):
                self._decoder.logits(self._decoder.make_room(rows))
            case Join():
                raise AssertionError("a rank joins once")


def _meet(config: EngineConfig, order: Join) -> RankGroup:
    return connect(
        config.device,
        order.meeting_place,
        order.rank,
        config.tensor_parallel_size,
        patience_s=order.patience_s,
        connect_s=order.connect_s,
    )


def _load(config: EngineConfig, group: RankGroup) -> tuple[ModelRunner, SharedDecoder]:
    model, memory = load_share(config, open_model(config), group)
    assert isinstance(model.decoder, SharedDecoder)
    return make_runner(config, model, memory), model.decoder
