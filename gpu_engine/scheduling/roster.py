"""Every unfinished request, in one of three places, and the KV memory that goes along when it moves.

add ──► gathering ──► line ──► running ──► end
                       ▲          │
                       └─ preempt ┘
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.gathering import Gathering
from headrace.gpu_engine.scheduling.prefixes import Known
from headrace.gpu_engine.scheduling.request import FinishReason, Request, Status
from headrace.gpu_engine.scheduling.swapping import SwapChoice
from headrace.gpu_engine.scheduling.waiting import WaitingQueue


class Roster:
    """`running` requests hold blocks; those in `line` wait for a slot or memory; the policy is yet to let
    those in who are in `gathering`. `preempted`: ids that lost their place since that was last taken."""

    def __init__(
        self, memory: KVMemory, gathering: Gathering, swap: SwapChoice, ageing_s: float = math.inf
    ) -> None:
        self.running: list[Request] = []
        self.line: WaitingQueue[Request] = WaitingQueue(ageing_s)
        self.gathering = gathering
        self.preemptions = 0
        self.preempted: list[str] = []
        self._memory = memory
        self._swap = swap
        self._requests: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    @property
    def num_active(self) -> int:
        """Those that were let in and have not ended."""
        return len(self.running) + len(self.line)

    @property
    def num_waiting(self) -> int:
        return len(self.line) + len(self.gathering)

    def waiting(self) -> Iterator[Request]:
        return chain(self.line, self.gathering)

    def add(self, request: Request, now: float) -> None:
        self._requests[request.id] = request
        self.gathering.push(request, now)

    def let_in(self, now: float) -> None:
        """Those whom the batching policy lets in now stand in the line."""
        for request in self.gathering.let_in(len(self.running), len(self.line), now):
            self.line.push(request)

    def join(self, request: Request, known: Known, now: float) -> None:
        """From the line to the running ones, with what is known of it and new blocks for the rest."""
        self.line.remove(request)
        self.line.overtake(request.turn.arrival, now)
        if request.cached_tokens is None:
            self._memory.count_query(request.num_tokens, known.num_tokens)
        blocks = self._memory.acquire(known.blocks, request.num_tokens, known.partial)
        request.start(blocks, len(known.blocks), known.num_tokens)
        if request.host_slots:
            self._swap.restore(request, known)
        self.running.append(request)

    def preempt(self, request: Request, *, evicted: bool = False) -> None:
        """Back to the line; its blocks go to the host, or are computed anew later. `evicted`: for want of
        memory."""
        self.running.remove(request)
        slots = self._swap.keep(request)
        self._memory.release(request.preempt(evicted=evicted, host_slots=slots))
        self.line.push(request)
        self.preemptions += 1
        self.preempted.append(request.id)

    def leave(self, request: Request) -> None:
        """Out of its place, wherever that is; `end` is to follow."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
        elif request in self.gathering:
            self.gathering.remove(request)
        else:
            self.line.remove(request)

    def end(self, request: Request, reason: FinishReason) -> None:
        """Frees all that it holds. One that runs stays in `running` until `forget_ended`, since a step ends
        many."""
        del self._requests[request.id]
        self._memory.drop_swapped(request.host_slots)
        self._memory.release(request.finish(reason))

    def forget_ended(self) -> None:
        self.running = [request for request in self.running if request.status is Status.RUNNING]

    def take_preempted(self) -> Sequence[str]:
        names, self.preempted = self.preempted, []
        return names

    # --------------------------------------------------------------------------- self-check

    def check_invariants(self) -> None:
        """Conservation of blocks and requests, and what each status promises; O(blocks). Raises
        AssertionError."""
        self.line.check_invariants()
        self.gathering.check_invariants()
        self._memory.check_invariants(
            [request.block_ids for request in self.running],
            [request.host_slots for request in self.waiting()],
        )
        here = {request.id: request for request in [*self.running, *self.waiting()]}
        assert len(here) == len(self.running) + self.num_waiting, "a request is in two places"
        assert here == self._requests, "a request is lost"
        for request in self.running:
            self._check_running(request)
        for request in self.waiting():
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
        assert not request.host_slots, f"{request.id} runs and holds host slots"
