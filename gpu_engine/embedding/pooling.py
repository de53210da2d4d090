"""From the hidden states of a text to its vector (Reimers and Gurevych 2019), chunk by chunk.

    rows of step 1   rows of step 2   …
         └───────┬────────┘
               pool ──► the first `dimensions` numbers ──► unit length

The vector does not depend on how the text was cut: a mean is summed row by row, in the order of positions,
in float64; of the rows themselves the model promises what it promises (`native.decoder`: bit for bit).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

PoolingKind: TypeAlias = Literal["mean", "last"]
Rows: TypeAlias = npt.NDArray[np.float32]
Vector: TypeAlias = npt.NDArray[np.float64]


class Pooler(Protocol):
    """Gathers the rows of one text."""

    @property
    def needs_all_rows(self) -> bool:
        """It must not begin with tokens from the prefix cache, whose hidden states nobody has."""

    def wanted(self, start: int, length: int) -> range:
        """Of the positions `start` … `start + length - 1`, in one piece, those whose rows it is yet to see.
        Positions that a preemption makes the model compute again are not seen again."""

    def add(self, rows: Rows) -> None:
        """Rows [n, hidden], finite, of the positions that were wanted last."""

    def take(self) -> list[float] | None:
        """The vector, whose numbers fit into float32, once all rows are there."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What becomes of a pooled vector: its first `dimensions` numbers (None: all), at unit length if
    `normalize`."""

    dimensions: int | None = None
    normalize: bool = True

    def apply(self, pooled: Vector) -> list[float]:
        vector = pooled[: self.dimensions]
        length = float(np.sqrt(np.square(vector).sum())) if self.normalize else 1.0
        return list((vector / (length or 1.0)).astype(np.float32).tolist())


class MeanPooler:
    """The mean of all rows of a text of `length` tokens."""

    needs_all_rows: Final = True

    def __init__(self, length: int, shape: Shape) -> None:
        self._length, self._shape = length, shape
        self._seen = 0
        self._sum: Vector | None = None

    def wanted(self, start: int, length: int) -> range:
        assert start <= self._seen, "rows were passed over that a mean needs"
        return range(self._seen, max(self._seen, start + length))

    def add(self, rows: Rows) -> None:
        if self._sum is None:
            self._sum = np.zeros(rows.shape[1])
        for row in rows:  # one by one: numpy sums a block of rows in an order of its own
            self._sum += row
        self._seen += len(rows)

    def take(self) -> list[float] | None:
        if self._sum is None or self._seen < self._length:
            return None
        return self._shape.apply(self._sum / self._length)


class LastPooler:
    """The row of the last of `length` tokens, which has seen all others."""

    needs_all_rows: Final = False

    def __init__(self, length: int, shape: Shape) -> None:
        self._last, self._shape = length - 1, shape
        self._row: Vector | None = None

    def wanted(self, start: int, length: int) -> range:
        return range(max(start, self._last), start + length)

    def add(self, rows: Rows) -> None:
        if len(rows):
            self._row = rows[-1].astype(np.float64)

    def take(self) -> list[float] | None:
        return None if self._row is None else self._shape.apply(self._row)


@dataclass(frozen=True, slots=True)
class PoolerMaker:
    """How one engine makes vectors: `size` numbers each. What the model and the settings say."""

    kind: PoolingKind
    normalize: bool
    size: int

    def make(self, length: int, dimensions: int | None) -> Pooler:
        """For a text of `length` tokens."""
        shape = Shape(dimensions, self.normalize)
        return MeanPooler(length, shape) if self.kind == "mean" else LastPooler(length, shape)
