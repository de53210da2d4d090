"""When a partition of a delay topic is read: now and then, in good time.

A fetch costs CPU for each partition that it asks for, at the broker and here, although mostly nothing comes;
and four in five partitions of a session are those of delays. What is written there is due when the delay's
length is over, so it is enough to look sooner than that:

    reads    ▓▓▓▓▓░░░░░░░░░░░░░░░░░░░░▓▓▓▓▓░░░░░░░░░░░░░░░░░░░░▓▓▓▓▓
                    │ written          │ known                      │ due

Looks are long beside a fetch, and longer for longer delays, so that a slow broker answers within one. Where
something is found the look goes on.
"""

from __future__ import annotations

from typing import Final

_LEAST_LOOK_S: Final = 0.5
_MOST_LOOK_S: Final = 2.0
_LOOK: Final = 1 / 8  # of the delay's length
_REST: Final = 1 / 2
_ALWAYS_S: Final = 2.0  # delays shorter than this are not worth a rest


class Rhythm:
    """Of one partition; begins with a look. Times are seconds of any fixed clock."""

    __slots__ = ("_look_s", "_rest_s", "_until", "rests")

    def __init__(self, length_s: float, now: float) -> None:
        self._look_s = min(_MOST_LOOK_S, max(_LEAST_LOOK_S, length_s * _LOOK))
        self._rest_s = length_s * _REST if length_s >= _ALWAYS_S else 0.0
        self._until = now + self._look_s
        self.rests = False

    def found(self, now: float) -> None:
        """Something was read."""
        if not self.rests:
            self._until = now + self._look_s

    def tick(self, now: float) -> None:
        """Time has gone by."""
        if now < self._until or not self._rest_s:
            return
        self.rests = not self.rests
        self._until = now + (self._rest_s if self.rests else self._look_s)
