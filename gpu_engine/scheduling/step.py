"""What the scheduler tells the runner, and what the runner answers: the two ends of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from headrace.gpu_engine.api import SamplingParams, TokenLogprobs
from headrace.gpu_engine.sampling.controls import Controls


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Tokens of one request that this step computes: a prefill chunk or a decode, which are the same thing.

    `token_ids` [n] are the input tokens at positions `start` … `start + n - 1`; the KV of all earlier
    positions is in the blocks. `block_table` covers positions 0 … start + n - 1, `block_size` each. With
    `samples`, the token at position `start + n` is drawn from the logits of the last one; its noise is
    keyed by (params.seed, start + n). `controls`: what shapes that choice or tells of it beyond what `params`
    say to every sampler; None for most requests. `adapter`: the LoRA adapter of its tokens.
    (Hundreds come and go in a step and none is part of a cycle: the garbage collector need not look at them.)

    The last `num_draft` tokens are a draft: guesses at what comes after the known ones. The tokens at its
    positions are sampled too, and the one behind it, as far as the draft is right (`speculation.acceptance`).
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    samples: bool
    params: SamplingParams
    controls: Controls | None = None
    adapter: str | None = None
    num_draft: int = 0

    @property
    def draft(self) -> Sequence[int]:
        return self.token_ids[len(self.token_ids) - self.num_draft :]

    @property
    def position(self) -> int:
        """That of the first token that it samples."""
        return self.start + len(self.token_ids) - self.num_draft


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One ragged forward: chunks of all scheduled requests, those of a single token first.

    Before it, whole blocks are copied as `memory.moves` says: `copies` (source, destination) within the KV
    memory, `copies_out` (block, host slot), `copies_in` (host slot, block). `preempted`: ids that lost their
    place for this step.
    """

    step: int
    chunks: Sequence[Chunk]
    copies: Sequence[tuple[int, int]] = ()
    copies_out: Sequence[tuple[int, int]] = ()
    copies_in: Sequence[tuple[int, int]] = ()
    preempted: Sequence[str] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)

    @property
    def num_draft_tokens(self) -> int:
        return sum(chunk.num_draft for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class StepResult:
    """`sampled`: next tokens by request id: one, behind those of a draft that are accepted; none where the
    rows of a draft were not finite, which the same step without it will explain. `failed`:
    requests whose logits were not finite, with a reason; nothing of theirs may enter the prefix cache.
    `logprobs`: one for each sampled token of requests that ask for them; `prompt_logprobs`: of a whole
    prompt, once, in the step that samples the first token after it."""

    step: int
    sampled: Mapping[str, Sequence[int]]
    failed: Mapping[str, str] = field(default_factory=dict)
    logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    embeddings: Mapping[str, list[float]] = field(default_factory=dict)
    """Vectors of the texts that this step completes."""

    @property
    def has_more(self) -> bool:
        """Whether it brings anything but tokens and failures."""
        return bool(self.logprobs or self.prompt_logprobs or self.embeddings)


class Runner(Protocol):
    """Computes steps. `num_blocks` and `block_size` describe its KV memory; block 0 is the null block,
    which no request ever gets and padding may point at."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...

    @property
    def num_host_slots(self) -> int:
        """Blocks that fit into the host's swap space; 0: there is none."""

    @property
    def block_copy_s(self) -> float:
        """Seconds that a block takes to the host, or back."""

    def launch(self, plan: StepPlan) -> StepResult:
        """Does the plan's copies and then its forward. May raise an out-of-memory error in the forward: the
        copies are done then, and the plan's tokens are taken as not computed."""
