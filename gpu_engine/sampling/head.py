"""The end of a step: from hidden states to the tokens, and log probabilities, that its chunks ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from headrace.gpu_engine.api import TokenLogprobs
from headrace.gpu_engine.sampling.prompt_scores import PromptScores
from headrace.gpu_engine.sampling.sampler import sample
from headrace.gpu_engine.sampling.shape import NOT_FINITE, Choice, ShapedSampler
from headrace.gpu_engine.scheduling.step import Chunk

ROWS_AT_ONCE: Final = 64
"""Rows of a prompt whose logits are computed together for its log probabilities: of a large vocabulary they
would take more memory than the model's step."""


@dataclass(slots=True)
class Sampled:
    """By request id, as in `StepResult`."""

    tokens: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)


class SamplingHead:
    """`logits_of`: from rows of hidden states [R, hidden] to logits [R, V]."""

    def __init__(self, logits_of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._logits_of = logits_of
        self._shaped = ShapedSampler()

    def sample(self, chunks: Sequence[Chunk], hidden: torch.Tensor, ends: torch.Tensor) -> Sampled:
        """For the chunks of a step, whose rows of `hidden` [T, hidden] end at `ends` [S]. Rows of requests
        without controls go their own way, and pay for no one."""
        rows = [i for i, chunk in enumerate(chunks) if chunk.samples]
        sampling = [chunks[i] for i in rows]
        logits = self._logits_of(hidden[ends[rows] - 1])
        if all(chunk.controls is None for chunk in chunks):
            return _sample_plain(sampling, logits)
        sampled = self._sample_mixed(sampling, logits)
        sampled.prompt_logprobs = self._score_prompts(chunks, hidden, ends)
        return sampled

    def _sample_mixed(self, chunks: Sequence[Chunk], logits: torch.Tensor) -> Sampled:
        plain = [i for i, chunk in enumerate(chunks) if chunk.controls is None]
        controlled = [i for i, chunk in enumerate(chunks) if chunk.controls is not None]
        sampled = _sample_plain([chunks[i] for i in plain], logits[plain])
        shaped = [chunks[i] for i in controlled]
        choices = self._shaped.sample(
            logits[controlled].float().cpu().numpy(),
            [chunk.controls for chunk in shaped if chunk.controls is not None],
            [chunk.params for chunk in shaped],
            [_position(chunk) for chunk in shaped],
        )
        for chunk, choice in zip(shaped, choices, strict=True):
            _note(sampled, chunk.request_id, choice)
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
                taken = scores.take() if chunk.samples else None
                if taken is not None:
                    complete[chunk.request_id] = taken
        return complete

    def _score_prompt(self, scores: PromptScores, chunk: Chunk, hidden: torch.Tensor, first: int) -> None:
        """`first`: where the row of position 0 would be."""
        wanted = scores.wanted(chunk.start, len(chunk.token_ids))
        for at in range(wanted.start, wanted.stop, ROWS_AT_ONCE):
            rows = hidden[first + at : first + min(at + ROWS_AT_ONCE, wanted.stop)]
            scores.add(self._logits_of(rows).float().cpu().numpy())


def _sample_plain(chunks: Sequence[Chunk], logits: torch.Tensor) -> Sampled:
    tokens = sample(logits, [chunk.params for chunk in chunks], [_position(chunk) for chunk in chunks])
    sampled = Sampled()
    for chunk, token in zip(chunks, tokens, strict=True):
        if token is None:
            sampled.failed[chunk.request_id] = NOT_FINITE
        else:
            sampled.tokens[chunk.request_id] = token
    return sampled


def _note(sampled: Sampled, request_id: str, choice: Choice) -> None:
    if choice.failure is not None:
        sampled.failed[request_id] = choice.failure
        return
    sampled.tokens[request_id] = choice.token
    if choice.logprobs is not None:
        sampled.logprobs[request_id] = choice.logprobs


def _position(chunk: Chunk) -> int:
    """That of the token to sample."""
    return chunk.start + len(chunk.token_ids)
