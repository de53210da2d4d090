"""The scheduler: in every step decides who computes how many tokens, and takes the results.

There are no phases. A request has known tokens and a count of computed ones; the difference is a gap to
close under the step's token budget. A decode is a gap of one, a prompt a long one, and what a prefix hit,
a preemption or a resume changes is only the size of the gap.

A step hands out the budget in this order:

    1. running requests that are one token behind: one token each; a block for it is found by
       preempting the one with least work in the lowest lane, if need be (`eviction`)
    2. waiting requests join, by the rules of `turn`: in what is free, or in the place of lower lanes
       (`gathering`, `joining`)
    3. running requests with a longer gap: as much as the budget still gives, whose turn it is first
       (`chunks`)
    4. drafts for those of 1.: in what is left, of the budget and of the blocks (`drafts`)

So a prompt of the highest lane gets its first tokens in the step after it came, whatever lower lanes do: all
of the budget but one token for each decode, and none for one step in MAX_OVERTAKES where a prompt of a lower
lane is due. No decode waits for more than one step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.embedding.pooling import Pooler
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.admission import Admission
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.chunks import ChunkCutter
from headrace.gpu_engine.scheduling.drafts import Drafts
from headrace.gpu_engine.scheduling.eviction import Eviction, PreemptHook
from headrace.gpu_engine.scheduling.forecast import OutputEstimate
from headrace.gpu_engine.scheduling.gathering import Gathering
from headrace.gpu_engine.scheduling.joining import Joining
from headrace.gpu_engine.scheduling.policies import BatchingPolicy, Continuous
from headrace.gpu_engine.scheduling.prefixes import has_prompt
from headrace.gpu_engine.scheduling.request import FinishReason, Request
from headrace.gpu_engine.scheduling.roster import Roster
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan, StepResult
from headrace.gpu_engine.scheduling.swapping import SwapChoice
from headrace.gpu_engine.speculation.price import Price

__all__ = ["PreemptHook", "Scheduler", "StepOutcome"]


class StepOutcome(msgspec.Struct, frozen=True, gc=False):
    """What a step brought for one request: tokens, an end, or the reason of its failure. A finish reason
    of `stop` that comes with tokens means that the last is an end token."""

    request_id: str
    cached_tokens: int
    tokens: Sequence[int] = ()
    finish_reason: FinishReason | None = None
    failure: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.failure is not None


class Scheduler:
    """Plans steps over a KV memory. Not thread-safe.

    `max_batch_size` bounds running requests, `max_batch_tokens` the tokens of a step. No more requests
    run than the step has tokens, so that each that decodes advances in every step. `looks_ahead`: see
    `admission`. `estimate`: how long outputs are expected to be before any has ended. `policy`: when requests
    may join; None: continuously. `block_copy_s`: see `swapping`. `draft_price`: see `drafts`. `ageing_s`: see
    `turn`; `clock` (seconds) serves it and the policy.
    """

    def __init__(
        self,
        memory: KVMemory,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        eos_ids: frozenset[int],
        watermark: float = 0.0,
        looks_ahead: bool = True,
        estimate: OutputEstimate | None = None,
        preempt_hook: PreemptHook | None = None,
        policy: BatchingPolicy | None = None,
        enable_chunking: bool = True,
        block_copy_s: float = 0.0,
        draft_price: Price | None = None,
        ageing_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget = StepBudget(max_batch_tokens)
        self.swap = SwapChoice(memory, block_copy_s)
        self.drafts = Drafts(memory, draft_price)
        self._memory = memory
        self._eos_ids = eos_ids
        gathering = Gathering(policy or Continuous(EngineConfig()), max_batch_size, ageing_s)
        self._roster = Roster(memory, gathering, self.swap, ageing_s)
        self._admission = Admission(
            memory,
            max_batch_size,
            self.budget,
            watermark,
            estimate or OutputEstimate(),
            looks_ahead=looks_ahead,
        )
        self._eviction = Eviction(self._roster, memory, self._admission, preempt_hook)
        self._joining = Joining(self._roster, memory, self._admission, self.budget, clock)
        self._cutter = ChunkCutter(
            memory, self.budget, self.drafts, enable_chunking=enable_chunking, clock=clock
        )
        self._clock = clock
        self._arrivals = 0
        self._step = 0

    @property
    def num_running(self) -> int:
        return len(self._roster.running)

    @property
    def num_waiting(self) -> int:
        return self._roster.num_waiting

    def num_waiting_tokens(self, but: int) -> int:
        """Known tokens of all that wait but the first `but` of them, for whom there are places;
        O(waiting)."""
        return sum(request.num_tokens for request in islice(self._roster.waiting(), but, None))

    @property
    def preemptions(self) -> int:
        """Preemptions so far, of all requests."""
        return self._roster.preemptions

    def __contains__(self, request_id: str) -> bool:
        """Whether the request is here and unfinished."""
        return request_id in self._roster

    def __len__(self) -> int:
        return len(self._roster)

    # --------------------------------------------------------------------------- in and out

    def add(self, request: Request) -> StepOutcome | None:
        """Queues a request that `Limits.check` accepts. One whose output has ended already (a resumed
        answer that lacked only its terminal record) is not queued: its end is returned."""
        assert request.id not in self._roster, f"{request.id} is here already"
        self._arrivals += 1
        request.turn.arrival = self._arrivals
        self._roster.add(request, self._clock())
        ending = request.ending(self._eos_ids)
        return self.finish(request.id, ending) if ending else None

    def sibling(self, name: str | None, prompt_ids: Sequence[int], adapter: str | None) -> Request | None:
        """The request of that name, if it is here and has this prompt."""
        request = None if name is None else self._roster.get(name)
        return request if request is not None and has_prompt(request, prompt_ids, adapter) else None

    def abort(self, request_id: str) -> StepOutcome | None:
        """Frees a request in any state at once; None if it is unknown or has ended. A step in flight may
        still write to its blocks, but runs to its end before any step that gets them next."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: FinishReason) -> StepOutcome | None:
        """Ends a request for a reason that the scheduler cannot see, such as a stop string."""
        request = self._roster.get(request_id)
        if request is None:
            return None
        self._roster.leave(request)
        self._end(request, reason)
        return StepOutcome(request.id, request.cached_tokens or 0, finish_reason=reason)

    # --------------------------------------------------------------------------- a step's two ends

    def schedule(self) -> StepPlan:
        """Plans the next step. It has a chunk whenever a request has been let in by the batching policy and
        has not ended."""
        self._step += 1
        self.drafts.settle()
        self._eviction.by_hook(self._step)
        short_of_budget = self._eviction.to_fit_budget()
        short_of_blocks = self._eviction.for_decodes()
        self._joining.let_join(in_short_supply=short_of_budget or short_of_blocks)
        chunks = self._cutter.cut(self._roster.running, self._step)
        assert chunks or not self._roster.num_active, "requests wait, and the step does nothing for them"
        moves = self._memory.take_moves()
        return StepPlan(self._step, chunks, *moves, preempted=self._roster.take_preempted())

    def apply(self, plan: StepPlan, result: StepResult) -> list[StepOutcome]:
        """Takes the results of a step. Those of requests that were aborted, preempted or replaced since
        the step was planned are stale and dropped; chunks that end inside a prompt bring no outcome."""
        outcomes = []
        find, step = self._roster.get, plan.step
        for chunk in plan.chunks:
            request = find(chunk.request_id)
            if request is None or request.planned_step != step:
                continue
            outcome = self._apply_chunk(request, chunk, result)
            if outcome is not None:
                outcomes.append(outcome)
        self._roster.forget_ended()
        self.drafts.settle()
        return outcomes

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The step took so long: for whoever decides by what tokens cost."""
        rows = plan.num_tokens
        self.swap.observe(rows, seconds)
        self.drafts.observe(plan, rows, seconds)

    def _apply_chunk(self, request: Request, chunk: Chunk, result: StepResult) -> StepOutcome | None:
        if result.failed and request.id in result.failed:
            self._end(request, "error")
            return StepOutcome(request.id, request.cached_tokens or 0, failure=result.failed[request.id])
        if chunk.controls is not None and chunk.controls.pooler is not None:
            return self._apply_pooled(request, chunk, chunk.controls.pooler)
        if not chunk.samples:
            request.advance(len(chunk.token_ids))
            return None
        run = result.sampled[request.id]
        if not run:
            self.drafts.give_up(request)
            return None
        tokens, ending = self._append(request, run)
        # The last token is not computed yet; those before it were, as a part of the draft.
        request.advance(len(chunk.token_ids) - chunk.num_draft + len(tokens) - 1)
        self._remember(request)
        if chunk.num_draft:
            self.drafts.note(request, chunk, run)
        if ending is not None:
            self._end(request, ending)
        return StepOutcome(request.id, request.cached_tokens or 0, tokens, ending)

    def _append(self, request: Request, run: Sequence[int]) -> tuple[Sequence[int], FinishReason | None]:
        """Appends the tokens of `run`, up to one that ends the output; returns those, and how it ended."""
        if len(run) == 1:  # nearly always
            request.append(run[0])
            return run, request.ending(self._eos_ids)
        for count, token in enumerate(run, start=1):
            request.append(token)
            ending = request.ending(self._eos_ids)
            if ending is not None:
                return run[:count], ending
        return run, None

    def _apply_pooled(self, request: Request, chunk: Chunk, pooler: Pooler) -> StepOutcome | None:
        """A text that is embedded ends where its last token is computed."""
        request.advance(len(chunk.token_ids))
        if request.gap:
            return None
        if not pooler.needs_all_rows:
            self._remember(request)
        self._end(request, "stop")
        return StepOutcome(request.id, request.cached_tokens or 0, finish_reason="stop")

    def _remember(self, request: Request) -> None:
        """Only here, where finite logits have been seen that depend on all that was computed: a NaN
        in the middle of a prompt would show in no earlier step."""
        full = request.num_computed_tokens // self._memory.block_size
        if full > request.kept_blocks:
            blocks = request.block_ids
            self._memory.remember(request.chain, request.token_ids, blocks, request.kept_blocks, full)
            request.kept_blocks = full

    def _end(self, request: Request, reason: FinishReason) -> None:
        self._roster.end(request, reason)
        if reason in ("stop", "length") and request.num_output_tokens:
            self._admission.estimate.observe(request.num_output_tokens)

    # --------------------------------------------------------------------------- self-check

    def check_idle(self) -> None:
        """O(1): with nothing to do, all memory is free. Raises AssertionError otherwise."""
        if not self._roster:
            assert self._memory.num_used == 0, f"nothing runs, and {self._memory.num_used} blocks are held"
            assert not self._memory.host_slots_used, "nothing runs, and the host keeps blocks"

    def check_invariants(self) -> None:
        """Conservation of blocks and requests, and what each status promises; O(blocks). Raises
        AssertionError."""
        self.check_idle()
        self._roster.check_invariants()
        assert self.num_running <= self._admission.max_running
