"""What one request asks of its rows beyond temperature, filters and seed: built once, when the request
comes in, and absent (None) where it asks for nothing, so that such rows cost nothing.

A row of logits passes in this order; whatever is not asked for is not there:

    raw logits ──► logprobs are taken here, as OpenAI's and vLLM's are
      │ 1. logit_bias            added
      │ 2. repetition_penalty    over prompt and output
      │ 3. frequency_penalty, presence_penalty    over the output
      │ 4. bad_words             the last token of each that would be completed: never
      │ 5. min_tokens            what would end the answer too early: never
      │ 6. grammar               all but what it lets follow: never
      ▼
    temperature, top_k, min_p, top_p, the draw (`sampler`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.gpu_engine.embedding.pooling import Pooler
from headrace.gpu_engine.sampling.filters import Row
from headrace.gpu_engine.sampling.guide import Guide
from headrace.gpu_engine.sampling.prompt_scores import PromptScores


class Stage(Protocol):
    """Changes a row of logits in place, knowing the output so far. What a stage does depends on the known
    tokens alone: it may count them as they come, but must be right if built anew from all of them."""

    def __call__(self, logits: Row) -> None: ...


@dataclass(frozen=True, slots=True)
class Controls:
    """`stages` in their order. `guide`: the grammar, whose masks all rows of a step get at once.
    `num_logprobs`: how many of the likeliest tokens to tell beside the chosen one; None: tell nothing.
    `pooler`: nothing is sampled, the rows are made into a vector."""

    stages: Sequence[Stage] = ()
    guide: Guide | None = None
    num_logprobs: int | None = None
    prompt_scores: PromptScores | None = None
    pooler: Pooler | None = None

    @property
    def is_telling(self) -> bool:
        """Whether tokens are sampled without them just as with them, and only told of."""
        return not self.stages and self.guide is None and self.pooler is None

    @property
    def needs_all_rows(self) -> bool:
        """Whether the request must not begin with tokens from the prefix cache, of which nobody has rows."""
        return self.prompt_scores is not None or (self.pooler is not None and self.pooler.needs_all_rows)
