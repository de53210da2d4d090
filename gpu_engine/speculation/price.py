"""What a row of a draft costs, measured in rows that the step computes anyway.

A step of R rows takes about a + b * R seconds: reading the weights, and arithmetic. The share of a row's own
cost in what a row costs on average,

    price(R) = b * R / (a + b * R),

is near 0 where the step waits for memory (few rows: more of them are nearly free) and near 1 where it is
bound by arithmetic (a full batch). A draft row pays if it brings more tokens than that: with a share p of all
draft rows accepted, tokens per second rise exactly where p > price.
"""

from __future__ import annotations

from typing import Final, Protocol

MEMORY: Final = 64
"""Steps after which what was measured has faded to a third."""


class Price(Protocol):
    def observe(self, rows: int, seconds: float) -> None:
        """A step of `rows` decodes and draft rows took `seconds`."""

    def of(self, rows: int) -> float:
        """Tokens that a draft row in a step of so many other rows must bring, 0 to 1."""


class Free:
    """The price where nobody measures it."""

    def observe(self, rows: int, seconds: float) -> None:
        pass

    def of(self, rows: int) -> float:
        return 0.0


class MeasuredPrice:
    """Fits a and b to the steps seen, by least squares, older ones fading. Until steps of different sizes
    were seen rows count as free, which is how those come about."""

    def __init__(self) -> None:
        self._count = 0
        self._rows = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        self._count += 1
        weight = max(1 / self._count, 1 / MEMORY)
        more_rows, more_seconds = rows - self._rows, seconds - self._seconds
        self._rows += weight * more_rows
        self._seconds += weight * more_seconds
        self._variance = (1 - weight) * (self._variance + weight * more_rows * more_rows)
        self._covariance = (1 - weight) * (self._covariance + weight * more_rows * more_seconds)

    def of(self, rows: int) -> float:
        if self._covariance <= 0 or self._variance <= 0:
            return 0.0
        slope = self._covariance / self._variance
        fixed = max(0.0, self._seconds - slope * self._rows)
        return slope * rows / (fixed + slope * rows)
