"""Who of the waiting may join now, such that preemption stays rare.

A request joins if its whole known text fits, a watermark of blocks stays free, and the expected peak of
all requests that run then fits too. The peak follows LightLLM: requests that finish early give their
blocks back, so with the expected remaining outputs sorted from longest to shortest, memory peaks at the
moment one of them finishes, and the i-th moment needs what the first i hold plus i times its remainder.

The remainder is bounded by max_tokens. That bound alone would serialise a batch whose max_tokens are
generous, so a running mean of the true output lengths stands in for it, and the bound is used where it
is the smaller, or where a request has been evicted so often that it is now to be spared.

Work of a higher lane may join in the place of what runs in lower ones, although nothing is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.preemption import choose_victims, is_spared
from headrace.gpu_engine.scheduling.request import Request


class OutputEstimate:
    """How long outputs turn out to be, in tokens: a moving mean over about the last 32 that ended by
    themselves, begun with a guess.

    Each preemption shows that the estimate was too low and raises it.
    """

    def __init__(self, first_guess: float = 128.0) -> None:
        self.mean = first_guess

    def observe(self, num_output_tokens: int) -> None:
        self.mean += (num_output_tokens - self.mean) / 32

    def raise_after_preemption(self) -> None:
        self.mean *= 1.25

    def remaining(self, request: Request) -> int:
        """Tokens that `request` may still grow by. One past the mean is expected to go on for another
        quarter of it."""
        if is_spared(request):
            return request.max_tokens_left
        expected = max(self.mean - request.num_output_tokens, self.mean / 4)
        return min(request.max_tokens_left, int(expected) + 1)


class Admission:
    """The test whether a waiting request may join those that run.

    No more than `max_batch_size` run, and no more than the step's `budget` has tokens, so that each that
    decodes advances in every step. `watermark`: share of blocks that stay free, unless nothing runs: a
    request alone always joins.
    """

    def __init__(
        self,
        memory: KVMemory,
        max_batch_size: int,
        budget: StepBudget,
        watermark: float,
        estimate: OutputEstimate,
    ) -> None:
        self._memory = memory
        self._max_batch_size = max_batch_size
        self._budget = budget
        self._reserve = int(watermark * memory.capacity)
        self.estimate = estimate

    @property
    def max_running(self) -> int:
        return min(self._max_batch_size, self._budget.tokens)

    def has_slot(self, request: Request, running: Sequence[Request], *, in_place: bool) -> bool:
        """A cheap first test: there is a slot, or somebody who may have to give way."""
        if not in_place and len(running) < self.max_running:
            return True
        return any(victim.turn.yields_to(request.turn) for victim in running)

    def make_room(
        self, request: Request, prefix: Sequence[int], running: Sequence[Request], *, in_place: bool
    ) -> list[Request] | None:
        """Whom to preempt so that `request` may join, mostly nobody; None: it may not join now.

        `prefix`: the blocks that the cache has for it. Only lower lanes give way, and only if that helps.
        `in_place`: what is free belongs to another first, so somebody must give way; that bounds how often
        this happens.
        """
        if not running:
            return []
        if not self._peak_fits(request, prefix, running):
            return None
        needed = self._memory.free_blocks_needed(prefix, request.num_tokens)
        free_slots = self.max_running - len(running)
        free_blocks = self._memory.num_free - self._reserve
        return choose_victims(
            request,
            prefix,
            running,
            self._memory,
            missing_slots=1 if in_place else 1 - free_slots,
            missing_blocks=needed - free_blocks,
        )

    def _peak_fits(self, request: Request, prefix: Sequence[int], running: Sequence[Request]) -> bool:
        """Whether memory lasts until the outputs of `request` and its peers are expected to end. Running
        requests that yield to it are no peers: they are preempted first if it comes to that."""
        peers = [other for other in running if not other.turn.yields_to(request.turn)]
        shared = self._memory.num_used - sum(other.own_blocks for other in running)
        growth = [(self._growth(other, request), other.own_blocks) for other in peers]
        needed = self._memory.free_blocks_needed(prefix, request.num_tokens)
        growth.append((self._growth(request, request), needed))
        return max(0, shared) + peak_blocks(growth) <= self._memory.capacity

    def _growth(self, peer: Request, beside: Request) -> int:
        """Blocks that `peer` is expected to grow by before it ends, or before it yields to `beside`."""
        tokens = self.estimate.remaining(peer)
        if peer.turn.priority > beside.turn.priority:
            tokens = min(tokens, peer.turn.owed - peer.turn.stay_tokens)
        return self._memory.blocks_for(tokens)


def peak_blocks(requests: Iterable[tuple[int, int]]) -> int:
    """The most blocks held at once by requests, each given as (blocks to come, blocks held), if all grow
    at the same rate and give everything back when they have grown. O(n log n)."""
    held = peak = 0
    for alive, (growth, blocks) in enumerate(sorted(requests, reverse=True), start=1):
        held += blocks
        peak = max(peak, held + alive * growth)
    return peak
