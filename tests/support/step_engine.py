"""A step engine over a real model, driven by token ids, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.gpu_engine.api import EngineRequest, SamplingParams
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.engine import StepEngine
from headrace.gpu_engine.parallel.runner import ParallelRunner
from headrace.gpu_engine.runner import ModelRunner
from headrace.gpu_engine.scheduling.scheduler import PreemptHook
from headrace.gpu_engine.scheduling.step import Runner, StepPlan, StepResult
from headrace.gpu_engine.text.tools.formats import CallFormat


class IdTokenizer:
    """Ids as decimal numbers: the text of an answer is of no interest where its tokens are compared."""

    fingerprint = "ids"
    eos_ids: frozenset[int] = frozenset()
    vocab_size = 1 << 20
    pieces: dict[int, str] | None = None
    call_format: CallFormat | None = None

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def encode_piece(self, text: str) -> list[int]:
        return self.encode(text)

    def to_json(self) -> str | None:
        return None

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        raise NotImplementedError

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"{token_id} " for token_id in token_ids)

    @property
    def verbatim(self) -> IdTokenizer:
        return self


@dataclass(frozen=True)
class FewerBlocks:
    """A runner of which only the first `num_blocks` blocks are used."""

    runner: Runner
    num_blocks: int

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
        return self.runner.launch(plan)


def make_engine(
    runner: ModelRunner | ParallelRunner,
    config: EngineConfig,
    num_blocks: int,
    preempt_hook: PreemptHook | None = None,
) -> StepEngine:
    """A step engine over `num_blocks` blocks of `runner`; what an engine before it left in them stays."""
    return StepEngine(
        config,
        FewerBlocks(runner, num_blocks),
        IdTokenizer(),
        model=runner.model_name,
        fingerprint=runner.fingerprint,
        max_context=runner.max_context,
        vocab_size=runner.vocab_size,
        adapters=runner.adapters,
        preempt_hook=preempt_hook,
    )


def run_all(
    engine: StepEngine, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> tuple[list[list[int]], int]:
    """Tokens of each prompt, all running side by side, and how many prompt tokens came from the cache."""
    for i, prompt in enumerate(prompts):
        assert engine.add(EngineRequest(id=str(i), prompt_ids=list(prompt), params=params)) is None
    answers: list[list[int]] = [[] for _ in prompts]
    cached = [0] * len(prompts)
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            answers[int(output.id)] += output.token_ids
            cached[int(output.id)] = output.cached_tokens
    engine.check_invariants()
    return answers, sum(cached)
