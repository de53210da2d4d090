"""Which tokens of one row may be drawn: top-k, min-p and top-p. Each filter returns the places of the tokens
that stay, ascending, in the row it was given; the likeliest token always does.

On a processor numpy does this several times faster than torch: it partitions and sorts bare values with
vector instructions, and no filter needs more than a threshold and the number of its equals.
"""

from __future__ import annotations

from math import log
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Row: TypeAlias = npt.NDArray[np.float32]
Places: TypeAlias = npt.NDArray[np.intp]

SEGMENT = 256
"""Weights are added up by segments first, and one by one only in the segment that is looked for."""


def keep_top_k(logits: Row, top_k: int) -> Places:
    """The `top_k` likeliest tokens; those as likely as the last of them stay too, as in vLLM."""
    place = max(0, len(logits) - top_k)
    return np.flatnonzero(logits >= np.partition(logits, place)[place])


def keep_min_p(logits: Row, min_p: float, temperature: float) -> Places:
    """Tokens at least `min_p` times as likely as the likeliest (Nguyen et al. 2024)."""
    return np.flatnonzero(logits >= float(logits.max()) + temperature * log(min_p))


def keep_top_p(weights: Row, top_p: float) -> Places:
    """The fewest likeliest tokens whose share of all `weights` reaches `top_p` (Holtzman et al. 2019);
    equal ones in the order of their ids."""
    total = float(weights.sum(dtype=np.float64))
    # What is below this share sums to less than 1 - top_p: the nucleus is complete without it.
    candidates = np.flatnonzero(weights >= total * (1 - top_p) / len(weights))
    likely = weights[candidates]
    ascending = np.sort(likely)
    count = 1 + find_place(ascending[::-1], top_p * total, "left")
    least = ascending[-count]
    surplus = len(likely) - int(np.searchsorted(ascending, least)) - count
    stays = likely >= least
    if surplus:
        stays[np.flatnonzero(likely == least)[-surplus:]] = False
    nucleus: Places = candidates[stays]
    return nucleus


def find_place(weights: Row, amount: float, side: Literal["left", "right"]) -> int:
    """The first place at which the cumulated weights reach `amount` (`left`) or exceed it (`right`), or else
    the last one that has weight. Sums are in float64: rounding must not make a token likelier."""
    segments = np.add.reduceat(weights, np.arange(0, len(weights), SEGMENT), dtype=np.float64).cumsum()
    segment = _search(segments, amount, side)
    before = segments[segment - 1] if segment else 0.0
    start = segment * SEGMENT
    inside = weights[start : start + SEGMENT].cumsum(dtype=np.float64)
    return start + _search(inside, amount - before, side)


def _search(cumulated: npt.NDArray[np.float64], amount: float, side: Literal["left", "right"]) -> int:
    last = np.searchsorted(cumulated, cumulated[-1])
    return int(min(np.searchsorted(cumulated, amount, side), last))
