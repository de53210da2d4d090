"""In which order a consumer looks at its lanes: strict preference, with ageing.

    turn       1  2  3  4  5  6  7  8  9 10 …      patience 4, all lanes full
    from       i  i  i  i  s  b  i  i  i  i …

A lane that was passed over `patience` times in favour of higher ones gets the next delivery, one only. So a
request at the head of its lane waits for at most `patience` deliveries from higher lanes of this consumer,
plus one from each other lane that is overdue, plus those of a pull that is under way. Both adapters choose by
this one rule; no clock is needed, and an idle higher lane costs a lower one nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.broker.message import Lane

PATIENCE = 16


class Share(msgspec.Struct, frozen=True):
    """Take up to `at_most` deliveries from `lane`, before the next share of the same plan. `turn`: it comes
    first because it was passed over for long."""

    lane: Lane
    at_most: int
    turn: bool = False


class Preference:
    """Remembers how often each lane was passed over. `lanes`: those that the consumer serves."""

    def __init__(self, lanes: Sequence[Lane], patience: int = PATIENCE) -> None:
        self._lanes = tuple(sorted(dict.fromkeys(lanes), key=tuple(Lane).index))
        self._patience = patience
        self._passed = dict.fromkeys(self._lanes, 0)

    def plan(self, limit: int, reserved: int = 0) -> list[Share]:
        """How to take up to `limit` deliveries; the last `reserved` of them are for the interactive lane.
        The shares may add up to more: who takes stops at `limit`, for other lanes at `limit - reserved`."""
        shared = max(0, limit - reserved)
        overdue = [lane for lane in self._lanes if self._passed[lane] >= self._patience]
        turns = [Share(lane, 1, turn=True) for lane in overdue[:shared]]
        rest = [Share(lane, limit if lane is Lane.INTERACTIVE else shared) for lane in self._lanes]
        return turns + [share for share in rest if share.at_most > 0]

    def taken(self, counts: dict[Lane, int], asked: Sequence[Share]) -> None:
        """What came of a plan: deliveries by lane. A lane that was asked and had nothing is not waiting."""
        looked_at = {share.lane for share in asked}
        had_turns = {share.lane for share in asked if share.turn}
        for index, lane in enumerate(self._lanes):
            higher = sum(counts.get(other, 0) for other in self._lanes[:index])
            served = counts.get(lane, 0) > 0 or lane in had_turns
            if served or (lane in looked_at and not higher):
                self._passed[lane] = 0
            else:
                self._passed[lane] += higher
