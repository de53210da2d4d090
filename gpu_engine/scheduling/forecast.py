"""The most KV blocks that running requests are expected to hold at once, looked ahead from one step.

The peak follows LightLLM: requests that finish early give their blocks back, so with the expected remaining
outputs sorted from longest to shortest, memory peaks at the moment one of them finishes, and the i-th moment
needs what the first i hold plus i times its remainder.

The remainder is bounded by max_tokens. That bound alone would serialise a batch whose max_tokens are
generous, so a running mean of the true output lengths stands in for it, and the bound is used where it
is the smaller, or where a request has been evicted so often that it is now to be spared.

A step may let many join, and each asks; what is known of those that run is kept from one question to the
next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.preemption import is_spared
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.turn import Turn


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


class Forecast:
    """Valid for the `running` requests of one moment (`look`), and those that join them (`joined`)."""

    def __init__(self, memory: KVMemory, estimate: OutputEstimate) -> None:
        self._memory = memory
        self._estimate = estimate
        self._running: Sequence[Request] = ()
        self._own_blocks: int | None = None
        # By lane of the one that asks: its turn, and (blocks to come, blocks held) of its peers.
        self._peers: dict[int, tuple[Turn, list[tuple[int, int]]]] = {}
        self._shared: dict[int, int] = {}

    def look(self, running: Sequence[Request]) -> None:
        """A step begins, or somebody has lost his place. `running`: the live list."""
        self._running = running
        self._own_blocks = None
        self._peers.clear()
        self._shared.clear()

    def joined(self, request: Request) -> None:
        """It is among the running ones from now on."""
        if self._own_blocks is not None:
            self._own_blocks += request.own_blocks
        self._shared.clear()
        for turn, peers in self._peers.values():
            if not request.turn.yields_to(turn):
                peers.append((self._growth(request, turn), request.own_blocks))

    def peak_with(self, request: Request, needed: int) -> int:
        """Blocks held at most, if `request` joins with `needed` free ones. Running requests that yield to it
        are no peers: they are preempted first if it comes to that."""
        newcomer = (self._growth(request, request.turn), needed)
        peers = self._peers_of(request.turn)
        return self._shared_beside(request.turn) + peak_blocks([*peers, newcomer])

    def _shared_beside(self, turn: Turn) -> int:
        """Blocks that the peers of `turn` found when they joined, and would give back last of all. What only
        those share that yield to it is no burden."""
        if turn.priority not in self._shared:
            if len(self._peers_of(turn)) == len(self._running):
                held, own = self._memory.num_used, self._count_own()
            else:
                peers = [other for other in self._running if not other.turn.yields_to(turn)]
                held = len({block for other in peers for block in other.block_ids})
                own = sum(other.own_blocks for other in peers)
            self._shared[turn.priority] = max(0, held - own)
        return self._shared[turn.priority]

    def _count_own(self) -> int:
        if self._own_blocks is None:
            self._own_blocks = sum(other.own_blocks for other in self._running)
        return self._own_blocks

    def _peers_of(self, turn: Turn) -> Sequence[tuple[int, int]]:
        if turn.priority not in self._peers:
            peers = [
                (self._growth(other, turn), other.own_blocks)
                for other in self._running
                if not other.turn.yields_to(turn)
            ]
            self._peers[turn.priority] = (turn, peers)
        return self._peers[turn.priority][1]

    def _growth(self, peer: Request, beside: Turn) -> int:
        """Blocks that `peer` is expected to grow by before it ends, or before it yields to `beside`."""
        tokens = self._estimate.remaining(peer)
        if peer.turn.priority > beside.priority:
            tokens = min(tokens, peer.turn.owed - peer.turn.stay_tokens)
        return self._memory.blocks_for(tokens)


def peak_blocks(requests: Iterable[tuple[int, int]]) -> int:
    """The most blocks held at once by requests, each given as (blocks to come, blocks held), if all grow
    at the same rate and give everything back when they have grown. O(n log n)."""
    held = peak = 0
    for alive, (growth, blocks) in enumerate(sorted(requests, reverse=True), start=1):
        held += blocks
        moment = held + alive * growth
        if moment > peak:
            peak = moment
    return peak
