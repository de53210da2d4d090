"""The arithmetic of a race: medians over the rounds, and ratios of what the same round brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.engine_bench.rounds import Turn
from benchmarks.shared.figures import median
from benchmarks.shared.report import number


@dataclass(frozen=True, slots=True)
class Spread:
    """`middle`: the median."""

    middle: float
    least: float
    most: float

    def as_note(self, scale: float = 1.0) -> str:
        """From the least to the most; empty where there is only one value."""
        if self.least == self.most:
            return ""
        return f"{number(scale * self.least)} to {number(scale * self.most)}"


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def column(turns: Sequence[Turn], figure: str) -> list[float]:
    """One figure, round by round."""
    return [turn.figures[figure] for turn in turns]


def ratio(ours: Sequence[float], theirs: Sequence[float], *, less_is_better: bool = False) -> Spread:
    """How many times better we are, round by round: a disturbed round disturbs both."""
    pairs = zip(ours, theirs, strict=True)
    return spread([theirs / ours if less_is_better else ours / theirs for ours, theirs in pairs])


def best_of(turns: Mapping[str, Sequence[Turn]], figure: str, *, less_is_better: bool = False) -> str | None:
    """The name with the best median; None where there is nobody."""
    medians = {name: median(column(each, figure)) for name, each in turns.items()}
    if not medians:
        return None
    return min(medians, key=lambda name: medians[name] if less_is_better else -medians[name])


def most_disturbed(turns: Sequence[Turn]) -> float:
    """Cores of others in the worst round."""
    return max(turn.others for turn in turns)
