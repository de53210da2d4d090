"""Notes of a row: what a reader must know before believing its figure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.engine_bench.foreign import MOST
from benchmarks.engine_bench.ratios import most_disturbed
from benchmarks.engine_bench.rounds import Turn


def disturbance(turns: Sequence[Turn]) -> str:
    return told_cores(most_disturbed(turns))


def told_cores(others: float) -> str:
    """A figure that others disturbed is marked."""
    return f"others {others:.2f} core{' (DISTURBED)' if others > MOST else ''}"


def join(*notes: str) -> str:
    return "; ".join(note for note in notes if note)
