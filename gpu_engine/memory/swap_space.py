"""Host memory for the KV blocks of preempted requests: which of its slots are taken."""

from __future__ import annotations

from collections.abc import Sequence


class SwapSpace:
    """`num_slots` slots of one block each.

    A slot that is given back may still be read by the step that is being planned, so it is free from the
    next one on (`settle`).
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))
        self._read: list[int] = []

    @property
    def num_used(self) -> int:
        return self.num_slots - len(self._free) - len(self._read)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` slots, at most `num_free`."""
        assert 0 <= count <= len(self._free), f"{count} host slots wanted, {len(self._free)} free"
        keep = len(self._free) - count
        slots, self._free = self._free[keep:], self._free[:keep]
        return slots

    def give_back(self, slots: Sequence[int]) -> None:
        self._read.extend(slots)

    def settle(self) -> None:
        """The step that reads what was given back has been planned."""
        self._free.extend(self._read)
        self._read.clear()

    def check_invariants(self, held: Sequence[int]) -> None:
        """`held`: the slots of all swapped requests. No slot is in two places, none is lost."""
        everywhere = [*self._free, *self._read, *held]
        assert sorted(everywhere) == list(range(self.num_slots)), "a host slot is lost or held twice"
