"""The engine's step: schedule, launch, apply; and what its outcomes look like to a reader."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from headrace.gpu_engine.api import (
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Output,
    SamplingParams,
    id_in_use,
)
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.check import check_embed
from headrace.gpu_engine.embedding.pooling import PoolerMaker
from headrace.gpu_engine.lora.known import check_adapter
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.out_of_memory import SparingSteps
from headrace.gpu_engine.sampling.controls_maker import ControlsMaker
from headrace.gpu_engine.sampling.guide import GrammarError, GuideMaker, refused_grammar
from headrace.gpu_engine.scheduling.forecast import OutputEstimate
from headrace.gpu_engine.scheduling.limits import Limits
from headrace.gpu_engine.scheduling.policies import load_policy
from headrace.gpu_engine.scheduling.queue_bounds import QueueBounds
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.scheduler import PreemptHook, Scheduler, StepOutcome
from headrace.gpu_engine.scheduling.step import Runner, StepResult
from headrace.gpu_engine.scheduling.turn import turn_of
from headrace.gpu_engine.speculation.drafter import DrafterMaker
from headrace.gpu_engine.stats import read_stats
from headrace.gpu_engine.steps import PlainSteps, Steps
from headrace.gpu_engine.text.contract import TextError, Tokenizer
from headrace.gpu_engine.text.stream import TextStream, open_text
from headrace.gpu_engine.trace import TracedSteps, TraceFile, TraceHeader

_NOTHING: Final = StepResult(0, {})
"""The result of no step, for requests that end outside of one."""


class StepEngine:
    """A continuous-batching engine over a `Runner`; implements `Engine`.

    `max_context`: positions the model has; `vocab_size`: ids it knows. `fingerprint` names model and
    tokenizer and salts the prefix cache; `adapters` are the runner's, with theirs, and take
    `adapter_bytes`. `estimate`: output lengths to expect at first. `clock` (seconds) serves ageing and the
    batching policy; `preempt_hook` forces preemptions in tests. Raises PolicyUnusable, and TraceError where
    the trace cannot be written.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        model: str,
        fingerprint: str,
        max_context: int,
        vocab_size: int,
        adapters: Mapping[str, str] = MappingProxyType({}),
        adapter_bytes: int = 0,
        estimate: OutputEstimate | None = None,
        preempt_hook: PreemptHook | None = None,
        clock: Callable[[], float] = time.monotonic,
        poolers: PoolerMaker | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._limits = Limits.of(
            config,
            num_blocks=runner.num_blocks,
            block_size=runner.block_size,
            max_context=max_context,
            vocab_size=vocab_size,
        )
        self._memory = KVMemory(
            runner.num_blocks,
            runner.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
            salt=fingerprint.encode(),
            num_host_slots=runner.num_host_slots,
        )
        self._drafters = DrafterMaker(config)
        self._scheduler = Scheduler(
            self._memory,
            max_batch_size=config.max_batch_size,
            max_batch_tokens=config.max_batch_tokens,
            eos_ids=tokenizer.eos_ids,
            watermark=config.watermark,
            looks_ahead=config.enable_peak_admission,
            estimate=estimate,
            preempt_hook=preempt_hook,
            policy=load_policy(config),
            enable_chunking=config.enable_chunked_prefill,
            block_copy_s=runner.block_copy_s,
            draft_price=self._drafters.make_price(),
            ageing_s=config.priority_ageing_ms / 1000,
            clock=clock,
        )
        self._bounds = QueueBounds.of(config)
        self._steps = _open_steps(config, self._scheduler, self._memory, runner)
        self._controls = ControlsMaker(tokenizer, vocab_size, poolers)
        self._texts: dict[str, TextStream] = {}
        self._ended: dict[str, Output] = {}
        self._info = EngineInfo(
            model=model,
            fingerprint=fingerprint,
            max_batch_size=config.max_batch_size,
            max_input_length=self._limits.max_input_length,
            max_total_tokens=self._limits.max_total_tokens,
            kv_tokens=self._limits.kv_tokens,
            adapters=dict(adapters),
            adapter_bytes=adapter_bytes,
            embedding_size=0 if poolers is None else poolers.size,
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def has_work(self) -> bool:
        return bool(self._texts or self._ended)

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def preemptions(self) -> int:
        """Preemptions so far, of all requests."""
        return self._scheduler.preemptions

    @property
    def stats(self) -> EngineStats:
        """What it holds now, and has done since it started."""
        return read_stats(self._scheduler, self._memory)

    @property
    def guides(self) -> GuideMaker | None:
        """What follows grammars; None where the tokenizer allows none."""
        return self._controls.guides

    def check(self, request: EngineRequest) -> EngineError | None:
        """Why `add` would refuse it, but for its grammar."""
        if request.id in self._texts or request.id in self._ended:
            return id_in_use(request.id)
        error = self._limits.check(request) or check_embed(request, self._info.embedding_size)
        error = error or check_adapter(request.adapter, self._info.adapters)
        return error or self._bounds.check(self._scheduler, request)

    def add(self, request: EngineRequest) -> EngineError | None:
        error = self.check(request)
        if error is not None:
            return error
        try:
            accepted = self._accept(request)
        except GrammarError as refusal:
            return refused_grammar(request.params.grammar, refusal)
        except TextError as refusal:
            message = f"bad_words cannot be used: {refusal}"
            return EngineError(code="invalid_request", message=message, param="bad_words")
        ending = self._scheduler.add(accepted)
        text = self._texts[request.id] = open_text(self._tokenizer, request.prompt_ids, request.params)
        if request.output_ids:
            text.feed(request.output_ids, ended=_ended_by_token(ending))
        if text.stopped and ending is None:
            ending = self._scheduler.finish(request.id, "stop")
        if ending is not None:
            self._ended[request.id] = self._say(ending, _NOTHING)
        return None

    def abort(self, request_id: str) -> None:
        ending = self._scheduler.abort(request_id)
        if ending is not None:
            self._ended[request_id] = self._say(ending, _NOTHING)

    def step(self) -> list[Output]:
        outputs: list[Output] = []
        if len(self._scheduler):
            plan, result = self._steps.take()  # schedule, launch
            outputs = [self._say(outcome, result) for outcome in self._scheduler.apply(plan, result)]
            self._scheduler.check_idle()
        ended, self._ended = self._ended, {}
        return [*ended.values(), *outputs]

    def _accept(self, request: EngineRequest) -> Request:
        """Raises GrammarError, and TextError for bad words that are no text."""
        prompt = len(request.prompt_ids)
        token_ids = [*request.prompt_ids, *request.output_ids]
        # Keys and values are those of the adapter: requests with another one share none of them.
        salt = self._info.adapters[request.adapter].encode() if request.adapter is not None else b""
        controls = self._controls.make(request, token_ids)
        if controls is not None and controls.needs_all_rows:
            salt += secrets.token_bytes(16)  # nobody shares it, which keeps the prefix cache out
        most = request.params.max_tokens if request.embed is None else 1  # it will not grow: nobody need wait
        return Request(
            id=request.id,
            token_ids=token_ids,
            num_prompt_tokens=prompt,
            max_output_tokens=self._limits.max_output_tokens(prompt, most),
            params=_seeded(request.params),
            chain=self._memory.chain(salt),
            controls=controls,
            drafter=self._drafters.make(controls),
            turn=turn_of(request),
            adapter=request.adapter,
            sibling=self._scheduler.sibling(request.prompt_of, request.prompt_ids, request.adapter),
        )

    def _say(self, outcome: StepOutcome, result: StepResult) -> Output:
        """What a reader sees of an outcome. A stop string that it completes ends the request here."""
        name = outcome.request_id
        text = self._texts[name]
        token_ids, piece = _read(text, outcome)
        if not (text.stopped or outcome.is_last or result.has_more):  # nearly always
            return Output(id=name, token_ids=token_ids, text=piece, cached_tokens=outcome.cached_tokens)
        stopped, reason, error = text.stopped, outcome.finish_reason, None
        if stopped or outcome.is_last:
            if stopped and not outcome.is_last:
                self._scheduler.finish(name, "stop")
            piece += "" if outcome.failure else text.flush()
            reason = "stop" if stopped else reason
            error = _as_error(outcome.failure)
            del self._texts[name]
        return Output(
            id=name,
            token_ids=token_ids,
            text=piece,
            finish_reason=reason,
            error=error,
            cached_tokens=outcome.cached_tokens,
            logprobs=[*result.logprobs[name]][: len(token_ids)] if name in result.logprobs else [],
            prompt_logprobs=[*result.prompt_logprobs.get(name, ())],
            embedding=result.embeddings.get(name, []),
        )

    def check_invariants(self) -> None:
        """For tests and for an idle engine; O(blocks). Raises AssertionError."""
        self._scheduler.check_invariants()
        assert len(self._texts) == len(self._scheduler), "a text outlives its request, or the reverse"


def _open_steps(config: EngineConfig, scheduler: Scheduler, memory: KVMemory, runner: Runner) -> Steps:
    steps = SparingSteps(PlainSteps(scheduler, runner), scheduler.budget)
    if config.trace_path is None:
        return steps
    header = TraceHeader(
        blocks=memory.capacity,
        block_size=memory.block_size,
        max_batch_size=config.max_batch_size,
        max_batch_tokens=config.max_batch_tokens,
        policy=config.batching_policy,
    )
    return TracedSteps(steps, scheduler, memory, TraceFile(config.trace_path, header))


def _seeded(params: SamplingParams) -> SamplingParams:
    if params.seed is not None or params.temperature == 0:
        return params
    return msgspec.structs.replace(params, seed=secrets.randbits(63))


def _read(text: TextStream, outcome: StepOutcome) -> tuple[list[int], str]:
    """The tokens of an outcome, up to one that completes a stop string, and what may be shown of them. Those
    behind it were drafted, and were never asked for."""
    if len(outcome.tokens) <= 1:  # nearly always
        token_ids = [*outcome.tokens]
        return token_ids, text.feed(token_ids, ended=bool(token_ids) and _ended_by_token(outcome))
    pieces, last = [], len(outcome.tokens) - 1
    for place, token in enumerate(outcome.tokens):
        pieces.append(text.feed([token], ended=place == last and _ended_by_token(outcome)))
        if text.stopped:
            break
    return [*outcome.tokens[: len(pieces)]], "".join(pieces)


def _as_error(failure: str | None) -> EngineError | None:
    return EngineError(code="internal_error", message=failure) if failure else None


def _ended_by_token(outcome: StepOutcome | None) -> bool:
    """The scheduler's `stop` is always that; stop strings are found here."""
    return outcome is not None and outcome.finish_reason == "stop"
