"""A request as the scheduler sees it: known tokens, and a count of computed ones that chases them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.memory.prefix_cache import HashChain
from headrace.gpu_engine.sampling.controls import Controls
from headrace.gpu_engine.scheduling.turn import Turn
from headrace.gpu_engine.speculation.drafter import Drafter

FinishReason: TypeAlias = Literal["stop", "length", "abort", "error"]


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.RUNNING: frozenset({Status.PREEMPTED, Status.FINISHED}),
    Status.PREEMPTED: frozenset({Status.RUNNING, Status.FINISHED}),
    Status.FINISHED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Request:
    """The state of one request; it changes only through the methods below, which the scheduler calls.

    `token_ids` are all known tokens, the prompt and then the output. The KV of the first
    `num_computed_tokens` of them is in `block_ids`; the rest is a gap to close, be it a prompt, the one
    token sampled last, or all that was lost in a preemption. `max_output_tokens` is the user's limit
    capped by what fits, so that the request alone can always run to its end. `own_blocks` were not shared
    from the start, `kept_blocks` are known to the prefix cache. `planned_step` is the step in flight that
    computes for it; a result of any other step is stale. `turn`: its place in the order. `evictions`: how
    often it was preempted for want of memory, as opposed to for a higher lane. While it waits after that,
    `host_slots` may keep the KV of its first `host_tokens` tokens, one block each. `drafter`: who guesses how
    it goes on; None: nobody. `sibling`: one with the same prompt, see `prefixes`.
    """

    id: str
    token_ids: list[int]
    num_prompt_tokens: int
    max_output_tokens: int
    params: SamplingParams
    chain: HashChain
    turn: Turn = field(default_factory=Turn)
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    own_blocks: int = 0
    kept_blocks: int = 0
    planned_step: int | None = None
    evictions: int = 0
    host_slots: list[int] = field(default_factory=list)
    host_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    controls: Controls | None = None
    adapter: str | None = None
    drafter: Drafter | None = None
    sibling: Request | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def gap(self) -> int:
        """Known tokens that are yet to be computed."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def max_tokens_left(self) -> int:
        return self.max_output_tokens - self.num_output_tokens

    def ending(self, eos_ids: frozenset[int]) -> FinishReason | None:
        """How its output has ended by itself, if it has. An end token at the last allowed place is a stop; so
        is a token of `stop_token_ids`, whatever `ignore_eos` says."""
        produced = len(self.token_ids) - self.num_prompt_tokens
        if produced and self.params.end_at(self.token_ids[-1], eos_ids):
            return "stop"
        return "length" if produced >= self.max_output_tokens else None

    def start(self, block_ids: list[int], num_known_blocks: int, num_known_tokens: int) -> None:
        """Joins the running ones with blocks for all known tokens, the first of them computed already; the
        first blocks are shared with others."""
        self._move_to(Status.RUNNING)
        self.block_ids = block_ids
        self.num_computed_tokens = num_known_tokens
        self.own_blocks = len(block_ids) - num_known_blocks
        self.kept_blocks = num_known_blocks
        self.turn.begin_stay()
        if self.cached_tokens is None:
            self.cached_tokens = min(self.num_computed_tokens, self.num_prompt_tokens)

    def extend(self, block_ids: list[int]) -> None:
        self.block_ids.extend(block_ids)
        self.own_blocks += len(block_ids)

    def trim(self, num_blocks: int) -> list[int]:
        """Gives all but its first `num_blocks` blocks back; returns them."""
        surplus = self.block_ids[num_blocks:]
        del self.block_ids[num_blocks:]
        self.own_blocks -= len(surplus)
        return surplus

    def advance(self, num_tokens: int) -> None:
        """The KV of the next `num_tokens` tokens has been computed."""
        self.num_computed_tokens += num_tokens
        self.planned_step = None

    def append(self, token: int) -> None:
        self.token_ids.append(token)
        self.turn.stay_tokens += 1

    def preempt(self, *, evicted: bool = False, host_slots: Sequence[int] = ()) -> list[int]:
        """Gives all blocks back; returns them. What was computed is in `host_slots` from now on, or to be
        computed anew later. `evicted`: for want of memory."""
        self._move_to(Status.PREEMPTED)
        self.turn.end_stay()
        self.evictions += evicted
        self.host_slots = [*host_slots]
        self.host_tokens = self.num_computed_tokens if host_slots else 0
        return self._drop_blocks()

    def take_back(self) -> None:
        """The blocks get what the host slots held, which are its own no more."""
        self.num_computed_tokens = max(self.num_computed_tokens, self.host_tokens)
        self._forget_host()

    def finish(self, reason: FinishReason) -> list[int]:
        """Ends the request; returns its blocks."""
        self._move_to(Status.FINISHED)
        self.finish_reason = reason
        self._forget_host()
        return self._drop_blocks()

    def _drop_blocks(self) -> list[int]:
        blocks, self.block_ids = self.block_ids, []
        self.num_computed_tokens = self.own_blocks = self.kept_blocks = 0
        self.planned_step = None
        return blocks

    def _forget_host(self) -> None:
        self.host_slots, self.host_tokens = [], 0

    def _move_to(self, status: Status) -> None:
        assert status in TRANSITIONS[self.status], f"{self.id}: {self.status.value} → {status.value}"
        self.status = status
