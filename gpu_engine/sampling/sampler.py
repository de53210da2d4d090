"""Chooses the next token of each row: greedy rows by their largest logit, the others at random under
their own temperature, filters and seed. Each row is computed by itself: its token depends on its own logits,
parameters, seed and position alone, whatever else is in the batch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.sampling.filters import Places, Row, find_place, keep_min_p, keep_top_k, keep_top_p
from headrace.gpu_engine.sampling.noise import uniform

COLDEST: Final = 1e-30
HOTTEST: Final = 1e30
"""Temperatures beyond these mean the same as they do: greedy, and every token as likely as any other. They
keep the quotient within float32."""


def find_best(logits: Row) -> int | None:
    """The first of the largest logits; None where any is not finite: NaN is both the largest and the smallest
    value of a row that holds one."""
    best = int(logits.argmax())
    return best if np.isfinite(logits[best]) and np.isfinite(logits.min()) else None


def choose(logits: Row, every: Places, params: SamplingParams, position: int) -> int | None:
    """Next token of a row of `logits` [V], float32; None where it is not finite. `position` is the one that
    the token will have; `every`: all token ids, made once for all rows. Among equal largest logits greedy
    takes the first."""
    best = find_best(logits)
    if best is None or params.temperature == 0:
        return best
    with np.errstate(over="ignore"):
        return draw(logits, every, params, position)


def draw(logits: Row, ids: Places, params: SamplingParams, position: int) -> int:
    """A token of `ids` [V] by inverse transform sampling: one uniform number, looked up in the cumulated
    weights in the order of token ids. Weights are relative to that of the likeliest token, in float32. Tokens
    at minus infinity are never drawn; one at least must be above it."""
    assert params.seed is not None, "the engine gives every request that draws a seed"
    temperature = min(max(params.temperature, COLDEST), HOTTEST)
    if 0 < params.top_k < len(ids):
        kept = keep_top_k(logits, params.top_k)
        ids, logits = ids[kept], logits[kept]
    if params.min_p:
        kept = keep_min_p(logits, params.min_p, temperature)
        ids, logits = ids[kept], logits[kept]
    weights = np.exp((logits - logits.max()) / np.float32(temperature))
    if params.top_p < 1:
        kept = keep_top_p(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    # Below the total except by rounding, for which find_place has the last token with weight.
    target = uniform(params.seed, position) * float(weights.sum(dtype=np.float64))
    return int(ids[find_place(weights, target, "right")])
