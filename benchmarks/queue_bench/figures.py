"""The arithmetic of the no-op measurement."""

from __future__ import annotations


def backlog_size(rate: float, seconds: float, *, least: int, most: int) -> int:
    """How many requests keep somebody of that rate (per second) busy for that time, in whole hundreds."""
    return min(most, max(least, round(rate * seconds / 100) * 100))
