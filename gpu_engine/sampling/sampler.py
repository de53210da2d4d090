"""Chooses the next token of each row: greedy rows by their largest logit, the others at random under
their own temperature, filters and seed. A row's token depends on its own logits, parameters, seed and
position alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sampling.filters import keep_min_p, keep_top_k, keep_top_p
from headrace.gpu_engine.sampling.noise import uniform

ROWS_AT_ONCE: Final = 4
"""Rows of a large vocabulary that are drawn together: more would fall out of a core's cache."""


def sample(
    logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[int | None]:
    """Next token of each row of `logits` [R, V], any float dtype; None where a row is not finite.

    `positions` are those that the tokens will have. Among equal largest logits greedy takes the first.
    """
    if not len(logits):
        return []
    logits = logits.float()
    chosen = logits.argmax(dim=-1)
    random = [row for row, p in enumerate(params) if p.temperature > 0]
    for start in range(0, len(random), ROWS_AT_ONCE):
        rows = random[start : start + ROWS_AT_ONCE]
        chosen[rows] = _draw(logits[rows], [params[row] for row in rows], [positions[row] for row in rows])
    # One pass over the logits: a sum is finite only if all its terms are.
    finite = logits.sum(dim=-1).isfinite()
    return [token if ok else None for token, ok in zip(chosen.tolist(), finite.tolist(), strict=True)]


def _draw(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> torch.Tensor:
    """Tokens [R] by inverse transform sampling: one uniform number a row, looked up in the cumulated
    weights in the order of token ids. In float64, so that rounding decides nothing."""

    def column(name: str, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor([getattr(p, name) for p in params], dtype=dtype, device=logits.device)

    exact = logits.double()
    exact.sub_(exact.amax(dim=-1, keepdim=True)).div_(column("temperature")[:, None])
    weights = keep_top_k(exact.exp_(), column("top_k", torch.int64))
    weights = keep_min_p(weights, column("min_p"))
    weights = keep_top_p(weights, column("top_p"))
    cumulated = weights.cumsum(dim=-1)
    noise = torch.from_numpy(uniform([p.seed for p in params], positions)).to(logits.device)
    # right=True finds the first cumulated weight above the target, which no token of weight 0 can be. The
    # target is below the total except by rounding, hence the clamp to the last token that has weight.
    target = noise[:, None] * cumulated[:, -1:]
    token = torch.searchsorted(cumulated, target, right=True)
    last = torch.searchsorted(cumulated, cumulated[:, -1:].contiguous())
    return torch.minimum(token, last)[:, 0]
