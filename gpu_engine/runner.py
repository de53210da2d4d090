"""The runner: computes what the scheduler planned, with a real model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from headrace.gpu_engine.attention.blocks import BlockStore
from headrace.gpu_engine.attention.contract import AttentionBackend, BackendFactory, KVSpec
from headrace.gpu_engine.backend import load_backend
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.rows import pool_rows
from headrace.gpu_engine.inputs import StepInputs, build_inputs
from headrace.gpu_engine.memory.machine import mib, require_memory
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.models.load import LoadedModel
from headrace.gpu_engine.sampling.head import SamplingHead
from headrace.gpu_engine.sampling.shape import NOT_FINITE
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan, StepResult

SHORTEST: Final = 2
"""Tokens of the shortest request: one of prompt, one of output."""


class ModelRunner:
    """Implements `Runner` over a model and an attention backend, which owns the KV memory.

    What an engine needs to know of the model: `model_name`, `fingerprint` (of the weights), `adapters` (their
    fingerprints by name), `vocab_size`, `max_context` (tokens per sequence) and `hidden_size` (numbers of a
    row).
    """

    def __init__(
        self, model: LoadedModel, attention: AttentionBackend, block_size: int, num_host_slots: int = 0
    ) -> None:
        config = model.decoder.config
        self.model_name = model.name
        self.fingerprint = model.fingerprint
        self.vocab_size = config.vocab_size
        self.max_context = config.max_context
        self.hidden_size = config.hidden_size
        self.adapters = model.adapters.fingerprints
        self.adapter_bytes = model.adapters.num_bytes
        self._adapters = model.adapters
        self._model = model.decoder
        self._head = SamplingHead(model.decoder.logits)
        self._attention = attention
        self._block_size = block_size
        self._blocks = BlockStore(attention.storage, num_host_slots)

    @property
    def num_blocks(self) -> int:
        return self._attention.num_blocks

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def num_host_slots(self) -> int:
        return self._blocks.num_host_slots

    @property
    def block_copy_s(self) -> float:
        return self._blocks.copy_s

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> StepResult:
        """One forward over all chunks; logits and tokens for those that sample."""
        computed = self.compute(plan)
        if computed is None:
            return StepResult(plan.step, {})
        inputs, hidden = computed
        failed = _find_failed(plan.chunks, inputs, hidden)
        sampled = self._head.sample(plan.chunks, hidden, inputs.ends)
        return StepResult(
            plan.step,
            sampled.tokens,
            sampled.failed | failed,
            sampled.logprobs,
            sampled.prompt_logprobs,
            pool_rows(plan.chunks, hidden, inputs.ends),
        )

    @torch.inference_mode()
    def compute(self, plan: StepPlan) -> tuple[StepInputs, torch.Tensor] | None:
        """The plan's copies and its forward without what comes of it: inputs and hidden states [T, hidden]
        of its chunks, if it has any."""
        self._blocks.move(plan)
        if not plan.chunks:
            return None
        inputs = build_inputs(plan.chunks, self._block_size)
        self._adapters.begin(plan.chunks)
        step = self._attention.begin(inputs.batch)
        return inputs, self._model.forward(inputs.token_ids, inputs.batch.positions, step)


def load_runner(config: EngineConfig) -> ModelRunner:
    """Loads the model and sets its KV memory up. Raises ModelError with a sentence for the user."""
    return make_runner(config, *load_backend(config))


def make_runner(config: EngineConfig, model: LoadedModel, factory: BackendFactory) -> ModelRunner:
    """Sets up the KV memory of a loaded model. Raises ModelError where it does not fit."""
    spec = model.decoder.kv_spec(config.block_size)
    attention = _allocate(config, spec, model, factory)
    host_slots = config.swap_space_bytes // factory.block_bytes(spec)
    return ModelRunner(model, attention, config.block_size, host_slots)


def _allocate(
    config: EngineConfig, spec: KVSpec, model: LoadedModel, factory: BackendFactory
) -> AttentionBackend:
    block_bytes = factory.block_bytes(spec)
    num_blocks = config.num_kv_blocks or _divide_memory(config, block_bytes, model.decoder.config.max_context)
    if (num_blocks - 1) * spec.block_size < SHORTEST:
        raise ModelError(
            f"{num_blocks} KV blocks of {spec.block_size} tokens, one of them the null block, are too few "
            f"for any request, which has at least {SHORTEST} tokens; raise num_kv_blocks or block_size."
        )
    swap = f", with {mib(config.swap_space_bytes)} of swap space," if config.swap_space_bytes else ""
    purpose = f"The weights ({mib(model.num_bytes)}) and {num_blocks} KV blocks{swap} take"
    advice = "lower kv_cache_bytes or num_kv_blocks"
    require_memory(model.num_bytes + num_blocks * block_bytes + config.swap_space_bytes, purpose, advice)
    return factory(spec, num_blocks)


def _divide_memory(config: EngineConfig, block_bytes: int, max_context: int) -> int:
    """As many blocks as `kv_cache_bytes` holds, but no more than a full batch of the longest requests and
    the null block could ever fill."""
    affordable = config.kv_cache_bytes // block_bytes
    if affordable < 2:
        raise ModelError(
            f"kv_cache_bytes {config.kv_cache_bytes} holds fewer than 2 KV blocks of {block_bytes} bytes; "
            f"give at least {2 * block_bytes} or lower block_size."
        )
    longest = min(max_context, config.max_total_tokens or max_context)
    return min(affordable, 1 + config.max_batch_size * -(-longest // config.block_size))


def _find_failed(chunks: Sequence[Chunk], inputs: StepInputs, hidden: torch.Tensor) -> dict[str, str]:
    """Requests of which any row is not finite, whether it samples or not: NaN that a chunk writes into the
    cache shows in its own rows, so that a request fails before the blocks it spoilt can be shared. A chunk
    with a draft fails nobody, since a wrong guess may have spoilt its rows; no token comes of those."""
    if math.isfinite(hidden.sum().item()):
        return {}
    finite = np.isfinite(hidden.float().sum(dim=-1).cpu().numpy())
    owners = np.unique(np.searchsorted(inputs.ends.numpy(), np.flatnonzero(~finite), side="right"))
    return {chunks[i].request_id: NOT_FINITE for i in owners.tolist() if not chunks[i].num_draft}
