"""The arithmetic of the measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the least value that at least `share` (0 to 1) of all do not exceed."""
    if not values:
        raise ValueError("there is no percentile of nothing")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return percentile(values, 0.5)


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest of several, by name."""

    name: str
    rate: float


def best(rates: Mapping[str, float]) -> Best | None:
    """None where there is nothing to choose from."""
    return max((Best(name, rate) for name, rate in rates.items()), key=lambda b: b.rate, default=None)
