"""Whether a preempted request's blocks are kept on the host or computed anew.

Copying costs what its blocks take to the host and back, measured by the runner when it starts; computing
costs its computed tokens at the pace that steps are seen to have. Long steps weigh more in that pace, since
what is computed anew is computed in long ones, where a token is cheapest.
"""

from __future__ import annotations

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.prefixes import Known
from headrace.gpu_engine.scheduling.request import Request

WEIGHT_TOKENS = 256
"""A step of so many tokens counts for as much as all before it."""


class SwapChoice:
    """Chooses for one victim after another. `block_copy_s`: seconds that one block takes one way."""

    def __init__(self, memory: KVMemory, block_copy_s: float) -> None:
        self._memory = memory
        self._block_copy_s = block_copy_s
        self.token_s = 0.0
        self.swaps_out = self.swaps_in = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of `num_tokens` took `seconds`."""
        if num_tokens:
            weight = num_tokens / (num_tokens + WEIGHT_TOKENS) if self.token_s else 1.0
            self.token_s += weight * (seconds / num_tokens - self.token_s)

    def keep(self, request: Request) -> list[int]:
        """Host slots that get the computed blocks of a victim, which is to release them next; none if they
        are to be computed anew, or if the host has no room."""
        blocks = request.block_ids[: self._memory.blocks_for(request.num_computed_tokens)]
        if not blocks or not self._pays(request.num_computed_tokens, len(blocks)):
            return []
        slots = self._memory.swap_out(blocks) or []
        self.swaps_out += bool(slots)
        return slots

    def restore(self, request: Request, known: Known) -> None:
        """Has the blocks of one that joins again filled from its host slots, but for those found already: the
        last of them may be a copy of another's that holds more than went to the host."""
        is_all_known = known.num_tokens >= request.host_tokens
        found = len(request.host_slots) if is_all_known else len(known.blocks)
        self._memory.swap_in(request.host_slots, request.block_ids, found)
        request.take_back()
        self.swaps_in += 1

    def _pays(self, num_tokens: int, num_blocks: int) -> bool:
        return num_tokens * self.token_s >= 2 * num_blocks * self._block_copy_s
