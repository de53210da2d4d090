"""What a consumer did since it started."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.events import Finished
from headrace.consumer.endings import Exit
from headrace.consumer.inflight import InFlight


@dataclass(slots=True)
class Counters:
    """`pulled` = the sum of the others but `resumed`, and those in flight.

    `resumed`: begun with tokens of an earlier owner, whatever became of them.
    `released`: handed back, at once or for later.
    `passed_on`: handed to another pool.
    `silent`: acknowledged without a terminal record of ours (twins, and requests that had ended).
    `fenced`: somebody else owned the request in the end.
    """

    pulled: int = 0
    resumed: int = 0
    finished: int = 0
    failed: int = 0
    silent: int = 0
    dead_lettered: int = 0
    released: int = 0
    passed_on: int = 0
    fenced: int = 0

    def left(self, flight: InFlight, *, settled: bool) -> None:
        """Counts how a request left."""
        self.resumed += flight.kept > 0
        ending = flight.ending
        if ending is None or not settled or ending.exit is Exit.DROP:
            self.fenced += 1
        elif ending.exit in (Exit.RELEASE, Exit.RETRY):
            self.released += 1
        elif ending.exit is Exit.MOVE:
            self.passed_on += 1
        elif ending.exit is Exit.DEAD_LETTER:
            self.dead_lettered += 1
        elif ending.terminal is None:
            self.silent += 1
        elif isinstance(ending.terminal, Finished):
            self.finished += 1
        else:
            self.failed += 1
