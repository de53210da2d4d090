"""Drafts in the plan of a step: they take what nobody else wants, and give it back when the step is over.

A draft gets the tokens that are left of the budget when all decodes and prompts have had theirs, and blocks
that are free then: no request is preempted for it, or kept waiting. Behind the step's result each request
holds the blocks of its known tokens and no more. The KV of tokens that were not accepted stays where it is
until the tokens that come in their place overwrite it; nothing reads it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan
from headrace.gpu_engine.speculation.price import Free, Price


class Drafts:
    """`proposed` and `accepted`: tokens so far. `price`: what a row of a draft costs (None: nothing)."""

    def __init__(self, memory: KVMemory, price: Price | None = None) -> None:
        self._memory = memory
        self._price = price or Free()
        self._lent: list[Request] = []
        self.proposed = self.accepted = 0

    def draft(self, decodes: Sequence[Request], rows: int, left: int) -> Mapping[str, Sequence[int]]:
        """By id the drafts of those that are one token behind, `left` tokens in all at most, for a step that
        has `rows` without them."""
        drafts: dict[str, Sequence[int]] = {}
        hopeful = [request for request in decodes if request.drafter is not None]
        price = self._price.of(rows) if hopeful else 0.0
        for request in hopeful:
            if left <= 0:
                break
            tokens = self._draft_for(request, left, price)
            if tokens:
                drafts[request.id] = tokens
                left -= len(tokens)
        return drafts

    def settle(self) -> None:
        """Takes back the blocks of drafts that were not accepted, or whose step never brought a result."""
        for request in self._lent:
            self._memory.release(request.trim(self._memory.blocks_for(request.num_tokens)))
        self._lent.clear()

    def note(self, request: Request, chunk: Chunk, run: Sequence[int]) -> None:
        """Of the chunk's draft all but the last of `run` was right."""
        accepted = len(run) - 1
        assert [*run[:-1]] == [*chunk.draft[:accepted]], "tokens come that nobody drafted"
        assert request.drafter is not None, "a request that nobody drafts for has a draft"
        self.proposed += chunk.num_draft
        self.accepted += accepted
        request.drafter.pace.observe(chunk.num_draft, accepted)

    def give_up(self, request: Request) -> None:
        """Its step came to nothing, perhaps for a wrong guess: it is taken again, and nobody guesses for
        this request any more."""
        request.drafter, request.planned_step = None, None

    def observe(self, plan: StepPlan, rows: int, seconds: float) -> None:
        """A step of `rows` took `seconds`. Only such teach the price as a draft makes longer: those without
        prompts."""
        count = len(plan.chunks)
        if rows and (rows == count or rows - plan.num_draft_tokens == count):
            self._price.observe(rows, seconds)

    def _draft_for(self, request: Request, left: int, price: float) -> Sequence[int]:
        assert request.drafter is not None
        # One token comes out of the step by itself; and none is drafted beyond the last.
        room = min(left, request.max_tokens_left - 1)
        tokens = request.drafter.draft(request.token_ids, room, price) if room > 0 else []
        return tokens[: self._lend(request, len(tokens))]

    def _lend(self, request: Request, count: int) -> int:
        """For how many of `count` further tokens it has blocks now."""
        end = request.num_tokens + count
        missing = self._memory.blocks_for(end) - len(request.block_ids)
        if missing > 0:
            request.extend(self._memory.allocate(min(missing, self._memory.num_free)))
            self._lent.append(request)
        return min(end, len(request.block_ids) * self._memory.block_size) - request.num_tokens
