"""The runner over several ranks: rank 0 is this process, which schedules and samples."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Final

import torch

from headrace.gpu_engine.attention.contract import KVSpec, StepAttention
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.models.contract import ModelSizes
from headrace.gpu_engine.models.errors import ModelError
from headrace.gpu_engine.parallel.crew import Crew, RanksLost, Worker
from headrace.gpu_engine.parallel.decoder import NO_MEMORY, SharedDecoder
from headrace.gpu_engine.parallel.group import PeersLost, TorchGroup, connect
from headrace.gpu_engine.parallel.load import OpenModel, load_share, open_model
from headrace.gpu_engine.parallel.messages import Join, Loaded, Score, order_of
from headrace.gpu_engine.parallel.processes import start_workers
from headrace.gpu_engine.runner import ModelRunner, make_runner
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds. `start_s`: that processes may take to start, and then to meet; `load_s`: that others may take
    to load their shares when rank 0 has loaded its own; `step_s`: that one rank may wait for another in the
    middle of a step, where they do equal work at the same time; `verdict_s`: that is spent on finding the
    rank to blame."""

    start_s: float = 120.0
    load_s: float = 1800.0
    step_s: float = 60.0
    verdict_s: float = 2.0


PATIENCE: Final = Patience()


@dataclass(frozen=True, slots=True)
class LeadingDecoder:
    """Rank 0's share, as a decoder whose logits are whole: the other ranks are told to bring theirs."""

    share: SharedDecoder
    crew: Crew

    @property
    def config(self) -> ModelSizes:
        return self.share.config

    def kv_spec(self, block_size: int) -> KVSpec:
        return self.share.kv_spec(block_size)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, step: StepAttention) -> torch.Tensor:
        return self.share.forward(token_ids, positions, step)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if not len(hidden):
            return hidden.new_empty(0, self.share.config.vocab_size)
        self.crew.tell(Score(len(hidden)))
        return self.share.logits(hidden)


class ParallelRunner:
    """Implements `Runner` over this process's `ModelRunner` and the other ranks.

    What fails in the middle of a step fails for good, since the ranks are out of step then: `launch` raises
    RanksLost with a sentence, and so does each later one. Only where memory runs out are they still in step.
    """

    def __init__(self, runner: ModelRunner, share: SharedDecoder, crew: Crew) -> None:
        self._runner, self._share = runner, share
        self._crew = crew
        self.model_name, self.fingerprint = runner.model_name, runner.fingerprint
        self.vocab_size, self.max_context = runner.vocab_size, runner.max_context
        self.hidden_size = runner.hidden_size
        self.adapters: Mapping[str, str] = {}
        self.adapter_bytes = 0
        self.close = weakref.finalize(self, crew.close)

    @property
    def num_blocks(self) -> int:
        return self._runner.num_blocks

    @property
    def block_size(self) -> int:
        return self._runner.block_size

    @property
    def num_host_slots(self) -> int:
        return self._runner.num_host_slots

    @property
    def block_copy_s(self) -> float:
        return self._runner.block_copy_s

    def launch(self, plan: StepPlan) -> StepResult:
        """All ranks compute their share of the plan; this one samples. Raises MemoryError, and RanksLost."""
        try:
            self._crew.tell(order_of(plan))
            result = self._share.keep_step(plan.num_tokens, lambda: self._runner.launch(plan))
        except RanksLost:
            raise
        except PeersLost as error:
            raise self._crew.lost() from error
        except Exception as error:
            raise self._crew.leave(error) from error
        if result is None:
            raise MemoryError(NO_MEMORY)
        return result


def load_parallel_runner(config: EngineConfig) -> ParallelRunner:
    """Starts the other ranks, each of which loads its share of the model while this one does. Raises
    ModelError with a sentence for the user."""
    model = open_model(config)
    try:
        return lead(config, model, start_workers(config.tensor_parallel_size - 1))
    except RanksLost as error:
        raise ModelError(str(error)) from error


def lead(
    config: EngineConfig, model: OpenModel, workers: Sequence[Worker], patience: Patience = PATIENCE
) -> ParallelRunner:
    """A runner over this process, as rank 0, and `workers`, which wait for their first order. Raises
    RanksLost, and ModelError. When it fails the workers are ended."""
    crew = Crew(workers, send_s=patience.step_s, verdict_s=patience.verdict_s)
    try:
        with TemporaryDirectory(prefix="headrace-") as folder:
            group = _meet(config, crew, os.path.join(folder, "ranks"), patience)
            share, memory = load_share(config, model, group)
            assert isinstance(share.decoder, SharedDecoder)
            whole = replace(share, decoder=LeadingDecoder(share.decoder, crew))
            runner = make_runner(config, whole, memory)
            own = Loaded(runner.fingerprint, runner.num_blocks, runner.num_host_slots)
            others = crew.hear(patience.load_s)
        assert all(other == own for other in others), f"ranks differ: {own} and {others}"
    except BaseException:
        crew.kill()
        raise
    return ParallelRunner(runner, share.decoder, crew)


def _meet(config: EngineConfig, crew: Crew, meeting_place: str, patience: Patience) -> TorchGroup:
    """Raises RanksLost."""
    crew.tell_each(
        [
            Join(
                config_json=config.model_dump_json().encode(),
                rank=rank,
                meeting_place=meeting_place,
                patience_s=patience.step_s,
                connect_s=patience.start_s,
            )
            for rank in range(1, crew.size)
        ]
    )
    crew.hear(patience.start_s)  # that they have started: who died before would be waited for in vain
    try:
        return connect(
            config.device,
            meeting_place,
            0,
            crew.size,
            patience_s=patience.step_s,
            connect_s=patience.start_s,
        )
    except PeersLost as error:
        raise crew.lost() from error
