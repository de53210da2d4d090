"""Who computes how many tokens of a step: one for each decode, the rest in turn, drafts last."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.drafts import Drafts
from headrace.gpu_engine.scheduling.request import Request
from headrace.gpu_engine.scheduling.step import Chunk


class ChunkCutter:
    """Cuts the chunks of a step from the gaps of running requests.

    `enable_chunking` off: a gap is computed in one piece, beyond the budget where it is longer than what
    decodes leave of that, and then as the only one, unless the budget has shrunk for want of memory. `clock`
    (seconds) serves ageing alone.
    """

    def __init__(
        self,
        memory: KVMemory,
        budget: StepBudget,
        drafts: Drafts,
        *,
        enable_chunking: bool,
        clock: Callable[[], float],
    ) -> None:
        self._memory = memory
        self._budget = budget
        self._drafts = drafts
        self._enable_chunking = enable_chunking
        self._clock = clock

    def cut(self, running: Sequence[Request], step: int) -> list[Chunk]:
        """One token for each decode, then what is left of the budget for longer gaps, in turn, and then for
        the decodes' drafts. Chunks of a single token come first."""
        decodes: list[Request] = []
        longer: list[Request] = []
        for request in running:
            (decodes if request.gap == 1 else longer).append(request)
        left = self._budget.tokens - len(decodes)
        chunks = self._cut_longer(longer, left, step)
        left -= sum(len(chunk.token_ids) for chunk in chunks)
        drafts = self._drafts.draft(decodes, self._budget.tokens - left, left)
        if drafts:
            drafting = [request for request in decodes if request.id in drafts]
            chunks += [self._chunk(request, 1, step, drafts[request.id]) for request in drafting]
            decodes = [request for request in decodes if request.id not in drafts]
        chunks.sort(key=lambda chunk: len(chunk.token_ids) > 1)
        return [self._decode(request, step) for request in decodes] + chunks

    def _cut_longer(self, longer: Sequence[Request], left: int, step: int) -> list[Chunk]:
        """A request that gets nothing is overtaken, and so will be due in a bounded number of steps."""
        chunks: list[Chunk] = []
        is_first = True
        for request in sorted(longer, key=lambda one: one.turn.order):
            size = self._portion(request.gap, left, is_first=is_first)
            left -= size
            is_first = is_first and not size
            self._note_turn(request, size)
            if size:
                chunks.append(self._chunk(request, size, step))
        return chunks

    def _portion(self, gap: int, left: int, *, is_first: bool) -> int:
        if gap <= left:
            return gap
        if self._enable_chunking or self._budget.is_shrunken:
            return max(0, left)
        return gap if is_first else 0  # while those decodes go on it would find no more room later

    def _note_turn(self, request: Request, size: int) -> None:
        if size:
            request.turn.served()
        else:
            request.turn.overtake(self._clock())

    def _decode(self, request: Request, step: int) -> Chunk:
        """The same of one token without a draft, which most chunks are."""
        request.planned_step = step
        tokens, controls = request.token_ids, request.controls
        return Chunk(
            request.id,
            tokens[-1:],
            len(tokens) - 1,
            request.block_ids[: self._memory.blocks_for(len(tokens))],
            controls is None or controls.pooler is None,
            request.params,
            controls,
            request.adapter,
        )

    def _chunk(self, request: Request, size: int, step: int, draft: Sequence[int] = ()) -> Chunk:
        start, tokens = request.num_computed_tokens, request.token_ids
        end = start + size
        request.planned_step = step
        return Chunk(
            request_id=request.id,
            token_ids=[*tokens[start:end], *draft] if draft else tokens[start:end],
            start=start,
            block_table=request.block_ids[: self._memory.blocks_for(end + len(draft))],
            samples=end == len(tokens) and (request.controls is None or request.controls.pooler is None),
            params=request.params,
            controls=request.controls,
            adapter=request.adapter,
            num_draft=len(draft),
        )
