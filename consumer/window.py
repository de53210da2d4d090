"""How many requests a consumer holds at a time.

    in flight ≤ slots = batch size + margin       margin = a quarter of the batch size, at least 2

The engine runs `max_batch_size` requests at once. The margin keeps the next ones parsed, tokenised and
waiting inside the engine, so that a slot that frees is filled in the same step; it also covers those whose
last round trip to the broker is under way. It is small on purpose: what one consumer holds without running
it, an idle peer cannot take. A request fills its slot from its pull until it is settled, so when the
broker is away the engine goes on up to the window, and memory stays bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN_SHARE = 4
MARGIN_LEAST = 2


def slots_for(max_batch_size: int) -> int:
    """Slots for an engine that runs `max_batch_size` requests at once."""
    return max_batch_size + max(MARGIN_LEAST, -(-max_batch_size // MARGIN_SHARE))


@dataclass(frozen=True, slots=True)
class Window:
    """`slots`: requests in flight at most."""

    slots: int

    def free(self, in_flight: int) -> int:
        """How many more deliveries to pull."""
        return max(0, self.slots - in_flight)
