"""The end of a step: from hidden states to the tokens, and log probabilities, that its chunks ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final

import numpy as np
import torch

from headrace.gpu_engine.api import TokenLogprobs
from headrace.gpu_engine.sampling.prompt_scores import PromptScores
from headrace.gpu_engine.sampling.sampler import choose
from headrace.gpu_engine.sampling.shape import NOT_FINITE, Choice, ShapedSampler
from headrace.gpu_engine.scheduling.step import Chunk
from headrace.gpu_engine.speculation.acceptance import accept

ROWS_AT_ONCE: Final = 64
"""Rows of a prompt whose logits are computed together for its log probabilities: of a large vocabulary they
would take more memory than the model's step."""


@dataclass(slots=True)
class Sampled:
    """By request id, as in `StepResult`."""

    tokens: dict[str, Sequence[int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, Sequence[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)


class SamplingHead:
    """`logits_of`: from rows of hidden states [R, hidden] to logits [R, V]."""

    def __init__(self, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._logits_of = logits_of
        self._shaped = ShapedSampler()
        self._every = np.arange(0)  # all token ids

    def sample(self, chunks: Sequence[Chunk], hidden: torch.Tensor, ends: torch.Tensor) -> Sampled:
        """For the chunks of a step, whose rows of `hidden` [T, hidden] end at `ends` [S]. Rows of requests
        without controls go their own way, and pay for no one."""
        sampling = [chunk for chunk in chunks if chunk.samples]
        logits = self._logits_of(_sampled_rows(chunks, hidden, ends))
        if all(chunk.controls is None for chunk in chunks):
            return self._sample_plain(sampling, logits)
        sampled = self._sample_mixed(sampling, logits)
        sampled.prompt_logprobs = self._score_prompts(chunks, hidden, ends)
        return sampled

    def _sample_plain(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> Sampled:
        rows = logits.float().cpu().numpy()
        if len(self._every) != rows.shape[1]:
            self._every = np.arange(rows.shape[1])
        sampled, first = Sampled(), 0
        for chunk in chunks:
            own, first = rows[first : first + 1 + chunk.num_draft], first + 1 + chunk.num_draft
            positions = count(chunk.position)
            run = accept(
                chunk.draft, (choose(row, self._every, chunk.params, next(positions)) for row in own)
            )
            if run or chunk.num_draft:
                sampled.tokens[chunk.request_id] = run
            else:
                sampled.failed[chunk.request_id] = NOT_FINITE
        return sampled

    def _sample_mixed(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> Sampled:
        owners = [chunk for chunk in chunks for _ in range(1 + chunk.num_draft)]
        plain = [row for row, chunk in enumerate(owners) if chunk.controls is None]
        sampled = self._sample_plain([one for one in chunks if one.controls is None], logits[plain])
        controlled = [row for row, chunk in enumerate(owners) if chunk.controls is not None]
        shaped = [chunk for chunk in chunks if chunk.controls is not None]
        choices = iter(
            self._shaped.sample(
                logits[controlled].float().cpu().numpy(),
                [chunk.controls for chunk in owners if chunk.controls is not None],
                [owners[row].params for row in controlled],
                [chunk.position + place for chunk in shaped for place in range(1 + chunk.num_draft)],
            )
        )
        for chunk in shaped:
            _note(sampled, chunk, [*islice(choices, 1 + chunk.num_draft)])
        return sampled

    def _score_prompts(
        self, chunks: Sequence[Chunk], hidden: torch.Tensor, ends: torch.Tensor
    ) -> dict[str, list[TokenLogprobs]]:
        """Scores the prompts' rows of this step; returns those of prompts that are complete."""
        complete: dict[str, list[TokenLogprobs]] = {}
        for i, chunk in enumerate(chunks):
            scores = None if chunk.controls is None else chunk.controls.prompt_scores
            if scores is not None:
                first = int(ends[i]) - len(chunk.token_ids) - chunk.start
                self._score_prompt(scores, chunk, hidden, first)
                taken = scores.take(chunk.position) if chunk.samples else None
                if taken is not None:
                    complete[chunk.request_id] = taken
        return complete

    def _score_prompt(self, scores: PromptScores, chunk: Chunk, hidden: torch.Tensor, first: int) -> None:
        """`first`: where the row of position 0 would be."""
        wanted = scores.wanted(chunk.start, len(chunk.token_ids))
        for at in range(wanted.start, wanted.stop, ROWS_AT_ONCE):
            rows = hidden[first + at : first + min(at + ROWS_AT_ONCE, wanted.stop)]
            scores.add(self._logits_of(rows).float().cpu().numpy())


def _sampled_rows(chunks: Sequence[Chunk], hidden: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Of each chunk that samples the rows of its draft, and the one before them."""
    if len(hidden) == len(chunks) and all(chunk.samples for chunk in chunks):
        return hidden  # only decodes, as in most steps
    rows = [
        row
        for chunk, end in zip(chunks, ends.tolist(), strict=True)
        if chunk.samples
        for row in range(end - 1 - chunk.num_draft, end)
    ]
    return hidden[torch.tensor(rows, dtype=torch.int64)]


def _note(sampled: Sampled, chunk: Chunk, choices: Sequence[Choice]) -> None:
    """`choices`: for each of the chunk's rows."""
    run = accept(chunk.draft, (choice.token if choice.failure is None else None for choice in choices))
    if not run and not chunk.num_draft:
        sampled.failed[chunk.request_id] = choices[0].failure or NOT_FINITE
        return
    sampled.tokens[chunk.request_id] = run
    scores = [choice.logprobs for choice in choices[: len(run)] if choice.logprobs is not None]
    if scores:
        sampled.logprobs[chunk.request_id] = scores
