"""The scheduler: in every step decides who computes how many tokens, and takes the results.

There are no phases. A request has known tokens and a count of computed ones; the difference is a gap to
close under the step's token budget. A decode is a gap of one, a prompt a long one, and what a prefix hit,
a preemption or a resume changes is only the size of the gap.

A step hands out the budget in this order:

    1. running requests that are one token behind: one token each; a block for it is found by
       preempting the one with least work in the lowest lane, if need be
    2. waiting requests join, by the rules of `turn`: in what is free, or in the place of lower lanes
    3. running requests with a longer gap: as much as the budget still gives, whose turn it is first

So a prompt of the highest lane gets its first tokens in the step after it came, whatever lower lanes do: all
of the budget but one token for each decode, and none for one step in MAX_OVERTAKES where a prompt of a lower
lane is due. No decode waits for more than one step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.admission import Admission, OutputEstimate
from headrace.gpu_engine.scheduling.preemption import eagerness_to_yield
from headrace.gpu_engine.scheduling.request import FinishReason, Request, Status
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan, StepResult
from headrace.gpu_engine.scheduling.waiting import WaitingQueue

LOOKAHEAD = 8
"""How many waiting requests that do not fit now are looked past in one step."""

PreemptHook = Callable[[int, Sequence[str]], Iterable[str]]
"""For tests: (step, ids that run) → ids to preempt at its start. One that has not sampled a token since it
joined is left alone, so that every hook leaves progress."""


class StepOutcome(NamedTuple):
    """What a step brought for one request: a token, an end, or the reason of its failure. A finish reason
    of `stop` that comes with a token means that it is an end token."""

    request_id: str
    cached_tokens: int
    token: int | None = None
    finish_reason: FinishReason | None = None
    failure: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.failure is not None


class Scheduler:
    """Plans steps over a KV memory. Not thread-safe.

    `max_batch_size` bounds running requests, `max_batch_tokens` the tokens of a step. No more requests
    run than the step has tokens, so that each that decodes advances in every step. `estimate`: how long
    outputs are expected to be before any has ended. `ageing_s`: see `turn`; `clock` (seconds) serves only it.
    """

    def __init__(
        self,
        memory: KVMemory,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        eos_ids: frozenset[int],
        watermark: float = 0.0,
        estimate: OutputEstimate | None = None,
        preempt_hook: PreemptHook | None = None,
        ageing_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory = memory
        self._max_running = min(max_batch_size, max_batch_tokens)
        self._max_batch_tokens = max_batch_tokens
        self._eos_ids = eos_ids
        self._admission = Admission(memory, self._max_running, watermark, estimate or OutputEstimate())
        self._preempt_hook = preempt_hook
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._waiting: WaitingQueue[Request] = WaitingQueue(ageing_s)
        self._clock = clock
        self._arrivals = 0
        self._step = 0
        self.preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        """Whether the request is here and unfinished."""
        return request_id in self._requests

    def __len__(self) -> int:
        return len(self._requests)

    # --------------------------------------------------------------------------- in and out

    def add(self, request: Request) -> StepOutcome | None:
        """Queues a request that `Limits.check` accepts. One whose output has ended already (a resumed
        answer that lacked only its terminal record) is not queued: its end is returned."""
        assert request.id not in self._requests, f"{request.id} is here already"
        self._arrivals += 1
        request.turn.arrival = self._arrivals
        self._requests[request.id] = request
        self._waiting.push(request)
        ending = request.ending(self._eos_ids)
        return self.finish(request.id, ending) if ending else None

    def abort(self, request_id: str) -> StepOutcome | None:
        """Frees a request in any state at once; None if it is unknown or has ended. A step in flight may
        still write to its blocks, but runs to its end before any step that gets them next."""
        return self.finish(request_id, "abort")

    def finish(self, request_id: str, reason: FinishReason) -> StepOutcome | None:
        """Ends a request for a reason that the scheduler cannot see, such as a stop string."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        if request.status is Status.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._end(request, reason)
        return StepOutcome(request.id, request.cached_tokens or 0, finish_reason=reason)

    # --------------------------------------------------------------------------- a step's two ends

    def schedule(self) -> StepPlan:
        """Plans the next step. It has a chunk whenever a request is unfinished."""
        self._step += 1
        self._preempt_by_hook()
        self._admit(in_short_supply=self._preempt_for_decodes())
        plan = StepPlan(self._step, self._cut_chunks())
        assert plan.chunks or not self._requests, "requests wait, and the step does nothing for them"
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> list[StepOutcome]:
        """Takes the results of a step. Those of requests that were aborted, preempted or replaced since
        the step was planned are stale and dropped; chunks that end inside a prompt bring no outcome."""
        outcomes = []
        for chunk in plan.chunks:
            request = self._requests.get(chunk.request_id)
            if request is None or request.planned_step != plan.step:
                continue
            outcome = self._apply_chunk(request, chunk, result)
            if outcome is not None:
                outcomes.append(outcome)
        self._running = [request for request in self._running if request.status is Status.RUNNING]
        return outcomes

    def _apply_chunk(self, request: Request, chunk: Chunk, result: StepResult) -> StepOutcome | None:
        failure = result.failed.get(request.id)
        if failure is not None:
            self._end(request, "error")
            return StepOutcome(request.id, request.cached_tokens or 0, failure=failure)
        request.advance(len(chunk.token_ids))
        if not chunk.samples:
            return None
        self._remember(request)
        token = result.sampled[request.id]
        request.append(token)
        ending = request.ending(self._eos_ids)
        if ending is not None:
            self._end(request, ending)
        return StepOutcome(request.id, request.cached_tokens or 0, token, ending)

    def _remember(self, request: Request) -> None:
        """Only here, where finite logits have been seen that depend on all that was computed: a NaN
        in the middle of a prompt would show in no earlier step."""
        full = request.num_computed_tokens // self._memory.block_size
        if full > request.kept_blocks:
            blocks = request.block_ids
            self._memory.remember(request.chain, request.token_ids, blocks, request.kept_blocks, full)
            request.kept_blocks = full

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._requests[request.id]
        self._memory.release(request.finish(reason))
        if reason in ("stop", "length"):
            self._admission.estimate.observe(request.num_output_tokens)

    # --------------------------------------------------------------------------- preemption

    def _preempt_by_hook(self) -> None:
        if self._preempt_hook is None:
            return
        chosen = set(self._preempt_hook(self._step, [request.id for request in self._running]))
        for request in [one for one in self._running if one.id in chosen and one.turn.stay_tokens]:
            self._preempt(request)

    def _preempt_for_decodes(self) -> bool:
        """Finds a block for every decode that begins one; whether that took a preemption.

        The request that would be preempted last always keeps its place, so every step gets somewhere,
        and alone it has enough, since it was accepted only if it fits."""
        size = self._memory.block_size
        short = [one for one in self._running if len(one.token_ids) > len(one.block_ids) * size]
        preempted = False
        while len(short) > self._memory.num_free:
            assert len(self._running) > 1, "a request alone does not fit, although it was accepted"
            victim = max(self._running, key=eagerness_to_yield)
            self._preempt(victim, evicted=True)
            self._admission.estimate.raise_after_preemption()
            short = [request for request in short if request is not victim]
            preempted = True
        for request in short:
            request.extend(self._memory.allocate(1))
        return preempted

    def _preempt(self, request: Request, *, evicted: bool = False) -> None:
        self._running.remove(request)
        self._memory.release(request.preempt(evicted=evicted))
        self._waiting.push(request)
        self.preemptions += 1

    # --------------------------------------------------------------------------- admission

    def _admit(self, *, in_short_supply: bool) -> None:
        """Lets waiting requests join while there are slots, memory, and tokens in this step's budget.

        What is free belongs to the one that is due, or to running requests where memory is in short
        supply. Others then join only in the place of lower lanes.
        """
        now = self._clock()
        self._waiting.age(now)
        blocked = 0
        for request in self._waiting.candidates(self._max_running - len(self._running) + LOOKAHEAD):
            due = self._waiting.due()
            in_place = in_short_supply or due not in (None, request)
            if self._may_join(request, in_place):
                prefix = self._memory.lookup(request.chain, request.token_ids)
                victims = self._admission.make_room(request, prefix, self._running, in_place=in_place)
                if victims is not None:
                    self._join(request, prefix, victims, now)
                    continue
            elif request is not due:
                return
            blocked += 1
            if blocked == LOOKAHEAD:
                return

    def _may_join(self, request: Request, in_place: bool) -> bool:
        """Two cheap tests: of slots, and whether it would get tokens in this step, after all whose turn is
        before its own. To join earlier would only hold memory, and miss what others are about to put into the
        prefix cache."""
        if not self._admission.has_slot(request, self._running, in_place=in_place):
            return False
        order = request.turn.order
        ahead = sum(other.gap for other in self._running if other.gap == 1 or other.turn.order < order)
        gives_way = in_place or len(self._running) == self._max_running
        return ahead - gives_way < self._max_batch_tokens

    def _join(self, request: Request, prefix: Sequence[int], victims: Sequence[Request], now: float) -> None:
        for victim in victims:
            self._preempt(victim)
        self._waiting.remove(request)
        self._waiting.overtake(request.turn.arrival, now)
        blocks = self._memory.acquire(prefix, request.num_tokens)
        request.start(blocks, len(prefix), self._memory.block_size)
        self._running.append(request)

    # --------------------------------------------------------------------------- chunks

    def _cut_chunks(self) -> list[Chunk]:
        """One token for each decode, then what is left of the budget for longer gaps, in turn. A request
        that gets nothing is overtaken, and so will be due in a bounded number of steps."""
        chunks = [self._cut(request, 1) for request in self._running if request.gap == 1]
        budget = self._max_batch_tokens - len(chunks)
        for request in sorted((one for one in self._running if one.gap > 1), key=lambda one: one.turn.order):
            size = min(request.gap, budget)
            budget -= size
            self._note_turn(request, size)
            if size == 1:
                chunks.insert(0, self._cut(request, 1))
            elif size:
                chunks.append(self._cut(request, size))
        return chunks

    def _note_turn(self, request: Request, size: int) -> None:
        if size:
            request.turn.served()
        else:
            request.turn.overtake(self._clock())

    def _cut(self, request: Request, size: int) -> Chunk:
        start, tokens = request.num_computed_tokens, request.token_ids
        end = start + size
        request.planned_step = self._step
        return Chunk(
            request_id=request.id,
            token_ids=tokens[start:end],
            start=start,
            block_table=request.block_ids[: self._memory.blocks_for(end)],
            samples=end == len(tokens),
            params=request.params,
        )

    # --------------------------------------------------------------------------- self-check

    def check_idle(self) -> None:
        """O(1): with nothing to do, all memory is free. Raises AssertionError otherwise."""
        if not self._requests:
            assert self._memory.num_used == 0, f"nothing runs, and {self._memory.num_used} blocks are held"

    def check_invariants(self) -> None:
        """Conservation of blocks and requests, and what each status promises; O(blocks). Raises
        AssertionError."""
        self.check_idle()
        self._waiting.check_invariants()
        self._memory.check_invariants(request.block_ids for request in self._running)
        assert len(self._running) <= self._max_running
        here = {request.id: request for request in [*self._running, *self._waiting]}
        assert len(here) == self.num_running + self.num_waiting, "a request is in two places"
        assert here == self._requests, "a request is lost"
        for request in self._running:
            self._check_running(request)
        for request in self._waiting:
            assert request.status in (Status.WAITING, Status.PREEMPTED), request.status
            assert not request.block_ids, f"{request.id} waits and holds blocks"
            assert not request.num_computed_tokens, f"{request.id} waits and has computed tokens"

    def _check_running(self, request: Request) -> None:
        assert request.status is Status.RUNNING, request.status
        assert 0 < request.gap <= request.num_tokens, "a running request has nothing to compute"
        held = len(request.block_ids)
        needed = self._memory.blocks_for(request.num_tokens)
        newest = 1 if request.gap == 1 else 0  # the block of a token just sampled comes with the next step
        assert needed - newest <= held <= needed, f"{request.id}: {held} blocks held, {needed} needed"
        assert request.max_tokens_left > 0, f"{request.id} goes on after its end"
