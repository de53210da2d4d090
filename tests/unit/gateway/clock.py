"""Time that passes when the test says so."""

from __future__ import annotations


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
