"""Bounds what is fetched ahead of the pulls: which partitions are paused.

A partition is paused once it has enough for a while, and resumed when half of that is gone. All together may
hold so many bytes; beyond that only partitions that are empty go on, and those of the interactive lane, whose
requests must not wait behind a backlog of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

P = TypeVar("P")

_MOST_RECORDS = 256
_MOST_BYTES = 4 << 20
_MOST_BYTES_OF_ALL = 32 << 20


@dataclass(frozen=True, slots=True)
class Fill:
    """What of a partition is fetched and not taken."""

    records: int
    bytes: int
    interactive: bool = False


def paused_partitions(fills: Mapping[P, Fill], paused: Iterable[P]) -> set[P]:
    """Which to pause now, given those that are."""
    before, everything = set(paused), sum(fill.bytes for fill in fills.values())
    tight = everything >= _MOST_BYTES_OF_ALL
    return {
        partition
        for partition, fill in fills.items()
        if _is_full(fill, 2 if partition in before else 1)
        or (tight and fill.records and not fill.interactive)
    }


def _is_full(fill: Fill, divisor: int) -> bool:
    return fill.records * divisor >= _MOST_RECORDS or fill.bytes * divisor >= _MOST_BYTES
