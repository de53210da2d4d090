"""Our engine put together by hand, so that its parts can be timed one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from headrace.gpu_engine.attention.contract import AttentionBackend, KVSpec, StepAttention
from headrace.gpu_engine.backend import load_backend
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.models.contract import CausalDecoder, ModelSizes
from headrace.gpu_engine.runner import ModelRunner
from headrace.gpu_engine.scheduling.step import Runner, StepPlan, StepResult
from headrace.gpu_engine.text.contract import Tokenizer


@dataclass(slots=True)
class Stopwatch:
    """Adds up the time of what is done under it."""

    seconds: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class TimedDecoder:
    """A decoder, and how long it has computed."""

    decoder: CausalDecoder
    clock: Stopwatch = field(default_factory=Stopwatch)

    @property
    def config(self) -> ModelSizes:
        return self.decoder.config

    def kv_spec(self, block_size: int) -> KVSpec:
        return self.decoder.kv_spec(block_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        with self.clock.running():
            return self.decoder.forward(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with self.clock.running():
            return self.decoder.logits(hidden)


@dataclass(frozen=True, slots=True)
class TimedRunner:
    """A runner, and how long its launches took."""

    runner: Runner
    clock: Stopwatch = field(default_factory=Stopwatch)

    @property
    def num_blocks(self) -> int:
        return self.runner.num_blocks

    @property
    def block_size(self) -> int:
        return self.runner.block_size

    @property
    def num_host_slots(self) -> int:
        return self.runner.num_host_slots

    @property
    def block_copy_s(self) -> float:
        return self.runner.block_copy_s

    def launch(self, plan: StepPlan) -> StepResult:
        with self.clock.running():
            return self.runner.launch(plan)


@dataclass(frozen=True, slots=True)
class Parts:
    """`runner` computes with `decoder` and `attention`."""

    decoder: TimedDecoder
    attention: AttentionBackend
    runner: ModelRunner


def load_parts(config: EngineConfig, num_blocks: int) -> Parts:
    """Raises ModelError."""
    model, factory = load_backend(config)
    decoder = TimedDecoder(model.decoder)
    attention = factory(decoder.kv_spec(config.block_size), num_blocks)
    return Parts(
        decoder, attention, ModelRunner(replace(model, decoder=decoder), attention, config.block_size)
    )


@dataclass(frozen=True, slots=True)
class NoModel:
    """A runner that computes nothing: what remains of a step is the engine's own work. It says `answer` over
    and over again; by default letters, as the simulated tokenizer knows them."""

    num_blocks: int
    block_size: int = 16
    num_host_slots: int = 0
    block_copy_s: float = 0.0
    answer: Sequence[int] = tuple(b"abcdefghijklmnopqrstuvwxyz")

    def launch(self, plan: StepPlan) -> StepResult:
        token = self.answer[plan.step % len(self.answer)]
        return StepResult(plan.step, {chunk.request_id: [token] for chunk in plan.chunks if chunk.samples})


def step_engine(config: EngineConfig, runner: Runner, tokenizer: Tokenizer) -> StepEngine:
    return StepEngine(
        config, runner, tokenizer, model="bench", fingerprint="bench", max_context=2048, vocab_size=30_000
    )


def our_config(model: str, threads: int, **fields: Any) -> EngineConfig:
    """As in the race: 16-bit weights, a core for each thread, no prefix cache; `fields` change it."""
    usual = {"weight_format": "int16", "pin_threads": True, "enable_prefix_caching": False}
    return EngineConfig.model_validate({"model": model, "threads": threads, **usual, **fields})
