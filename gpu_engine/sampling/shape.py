"""Sampling of the rows that ask for more than plain parameters: each is shaped by its own controls, with the
masks of all grammars computed at once, and then drawn from like any other row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.gpu_engine.api import SamplingParams, TokenLogprobs
from headrace.gpu_engine.sampling.bans import NEVER
from headrace.gpu_engine.sampling.controls import Controls
from headrace.gpu_engine.sampling.filters import Row
from headrace.gpu_engine.sampling.guide import Allowed, Masks
from headrace.gpu_engine.sampling.logprobs import Scores
from headrace.gpu_engine.sampling.sampler import draw, find_best

Matrix: TypeAlias = npt.NDArray[np.float32]

NOT_FINITE = "the model's output is not finite for this input"
NOTHING_LEFT = "bad_words, min_tokens or the grammar forbid every token that could come next"


class Choice(NamedTuple):
    """The next token of one row, or why there is none."""

    token: int = -1
    logprobs: TokenLogprobs | None = None
    failure: str | None = None


class ShapedSampler:
    """Holds what the rows share: the threads in which llguidance computes masks, once a row has a grammar."""

    def __init__(self) -> None:
        self._masks: Masks | None = None

    def sample(
        self,
        rows: Matrix,
        controls: Sequence[Controls],
        params: Sequence[SamplingParams],
        positions: Sequence[int],
    ) -> list[Choice]:
        """A choice for each of `rows` [R, V], as `sampler.sample`; rows are not changed."""
        masks = self._compute_masks(controls, rows.shape[1])
        every = np.arange(rows.shape[1])
        choices = []
        with np.errstate(over="ignore"):
            for i, (row, own) in enumerate(zip(rows, controls, strict=True)):
                shaped, failure = _shape(row, own, masks.get(i))
                if failure is None:
                    token = int(shaped.argmax()) if params[i].temperature == 0 else -1
                    token = draw(shaped, every, params[i], positions[i]) if token < 0 else token
                    choices.append(Choice(token, _score(row, own, token)))
                else:
                    choices.append(Choice(failure=failure))
        return choices

    def _compute_masks(self, controls: Sequence[Controls], vocab_size: int) -> Mapping[int, Allowed]:
        guided = {i: own.guide for i, own in enumerate(controls) if own.guide is not None}
        if not guided:
            return {}
        self._masks = self._masks or Masks()
        return dict(zip(guided, self._masks.compute([*guided.values()], vocab_size), strict=True))


def _shape(row: Row, controls: Controls, mask: Allowed | None) -> tuple[Row, str | None]:
    """The row that is drawn from, or why nothing can be drawn."""
    if find_best(row) is None:
        return row, NOT_FINITE
    if controls.guide is not None and (failure := controls.guide.failure) is not None:
        return row, failure
    shaped = row.copy() if controls.stages or mask is not None else row
    for stage in controls.stages:
        stage(shaped)
    if mask is not None:
        shaped[~mask] = NEVER
    return shaped, None if np.isfinite(shaped.max()) else NOTHING_LEFT


def _score(row: Row, controls: Controls, token: int) -> TokenLogprobs | None:
    count = controls.num_logprobs
    return None if count is None else Scores(row, count).of(token)
