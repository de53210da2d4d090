"""How quickly places become free, and with that when it is worth asking again."""

from __future__ import annotations

import math
from collections.abc import Callable

MEMORY_S = 10.0
SHORTEST_S, LONGEST_S, UNKNOWN_S = 0.5, 30.0, 1.0


class DrainRate:
    """A mean over about the last MEMORY_S seconds, the latest counting most. `clock`: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = self._at = clock()
        self._level = 0.0

    def observe(self, left: int) -> None:
        """So many have left since the last observation."""
        self._decay()
        self._level += left

    def delay_ms(self, places: int) -> int:
        """When so many places may be free: within bounds, and a guess until something was seen."""
        self._decay()
        known_s = self._at - self._began_at
        if known_s < 1:
            return round(UNKNOWN_S * 1000)
        # A counter that decays has seen only this share of its mean after so short a time.
        per_s = self._level / (MEMORY_S * (1 - math.exp(-known_s / MEMORY_S)))
        wait_s = places / per_s if per_s > 0 else LONGEST_S
        return round(1000 * min(LONGEST_S, max(SHORTEST_S, wait_s)))

    def _decay(self) -> None:
        now = self._clock()
        self._level *= math.exp((self._at - now) / MEMORY_S)
        self._at = now
