"""What of a request's text is computed already when it joins: in the prefix cache, or by a request that runs.

The cache knows full blocks. A request with the same prompt that still runs (another of `n` answers) has the
rest of it too, in a block that it goes on writing to, behind the prompt: that one is copied (copy-on-write,
as in vLLM's paper, Kwon et al. 2023, section 4.4, but at once, since who joins writes in the same step).

    block size 4, a prompt of 10 tokens      the one that runs   [ 0 1 2 3 ][ 4 5 6 7 ][ 8 9 a b ]
                                                                      │          │          │ copied
                                             the one that joins  [ 0 1 2 3 ][ 4 5 6 7 ][ 8 9 . . ]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.request import Request, Status


class Known(NamedTuple):
    """The first `num_tokens` tokens of a text: in full `blocks`, to be shared, and in `partial`, if they end
    inside of that, which is to be copied."""

    blocks: Sequence[int]
    num_tokens: int
    partial: int | None = None


class Prefixes:
    """Looks for the longest known beginning, which leaves at least one token to compute."""

    def __init__(self, memory: KVMemory) -> None:
        self._memory = memory

    def find(self, request: Request) -> Known:
        other = request.sibling
        shared = 0 if other is None else _num_shared(request, other)
        blocks = self._memory.lookup(request.chain, request.token_ids)
        size = self._memory.block_size
        if other is None or shared < len(blocks) * size:
            return Known(blocks, len(blocks) * size)
        full = shared // size
        return Known(other.block_ids[:full], shared, other.block_ids[full] if shared % size else None)


def has_prompt(request: Request, prompt_ids: Sequence[int], adapter: str | None) -> bool:
    """Whether a prompt has the same keys and values as that of `request`."""
    count = request.num_prompt_tokens
    return request.adapter == adapter and request.token_ids[:count] == [*prompt_ids]


def _num_shared(request: Request, other: Request) -> int:
    """Tokens of their prompt that `other` has computed, if that is all. One that may have to make room for
    `request` does not count, and who asks for all rows of the prompt computes them all."""
    count = min(request.num_prompt_tokens, request.num_tokens - 1)
    if request.controls is not None and request.controls.needs_all_rows:
        return 0
    is_there = other.status is Status.RUNNING and other.num_computed_tokens >= count
    return 0 if not is_there or other.turn.yields_to(request.turn) else count
