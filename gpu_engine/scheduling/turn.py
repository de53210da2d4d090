"""Whose turn it is: what order, ageing and giving way need to know of a request.

Requests are served by lane, then by deadline, then as they came. Three rules bound what that does to those
at the end of the line:

- **Ageing.** The oldest request of a lane that others overtake (they came later and joined first) is due once
  that has happened MAX_OVERTAKES times, or goes on for `priority_ageing_ms`. What is due has the first claim
  on what becomes free. One of a higher lane may still go ahead of it, but only in the place of running work
  that gives way to it; so that happens at most as often as there is such work.
- **Giving way.** Work of a higher lane that finds no room takes the place of running work of a lower one: the
  lowest lane first, in it the one with least computed work. Never of its own lane, never of a higher one.
- **Stays.** Nobody gives way again for nothing: one that comes back after a preemption brings a new token
  first, one that joined because it was due 8. Beyond that those of a lane go first that have brought their
  `stay`, or most of it: 16 new tokens after the first preemption, then 32, then 64 each time. So users are
  not kept waiting by more than one recompute, and the burden is passed around. (Want of memory for running
  work knows no stays: it takes the lowest lane, and admission sees to it that this is rare.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from headrace.gpu_engine.api import EngineRequest

MAX_OVERTAKES = 16
"""How often others may go first before a request is due."""

SHORTEST_STAY, LONGEST_STAY = 8, 64
"""New tokens for which a place is kept, where that can be helped."""


@dataclass(slots=True, eq=False)
class Turn:
    """The place of one request in the order.

    `priority`: its lane, 0 the highest. `deadline`: any increasing measure of time. `arrival`: its number.
    `overtaken`: how often others went first since it last had its turn, `overtaken_since` when they began to
    (seconds), `aged`: that was too long ago. `keeps_place`: it joined because it was due. `stay_tokens`: new
    tokens since it joined. `preemptions`: how often it gave its place up.
    """

    priority: int = 1
    deadline: float = math.inf
    arrival: int = 0
    overtaken: int = 0
    overtaken_since: float | None = None
    aged: bool = False
    keeps_place: bool = False
    stay_tokens: int = 0
    preemptions: int = 0

    @property
    def is_due(self) -> bool:
        return self.aged or self.overtaken >= MAX_OVERTAKES

    @property
    def in_lane(self) -> tuple[float, int]:
        """Sorts the requests of one lane."""
        return (self.deadline, self.arrival)

    @property
    def order(self) -> tuple[int, float, int]:
        """Sorts requests by whose turn it is: those that are due as they came, then lane by lane."""
        return (-1, 0, self.arrival) if self.is_due else (self.priority, self.deadline, self.arrival)

    @property
    def owed(self) -> int:
        """New tokens that it brings before it gives way, whoever comes."""
        return SHORTEST_STAY if self.keeps_place else min(1, self.preemptions)

    @property
    def stay(self) -> int:
        """New tokens that it brings before it gives way, while there are others who can."""
        if self.preemptions == 0 and not self.keeps_place:
            return 0
        return min(LONGEST_STAY, SHORTEST_STAY << min(self.preemptions, 3))

    @property
    def left_of_stay(self) -> int:
        return max(0, self.stay - self.stay_tokens)

    def overtake(self, now: float) -> None:
        """Another went first."""
        self.overtaken += 1
        if self.overtaken_since is None:
            self.overtaken_since = now

    def take_claim(self, other: Turn) -> None:
        """Comes back ahead of one that has waited in vain: its lane is owed a turn, and only one."""
        self.overtaken, self.overtaken_since, self.aged = other.overtaken, other.overtaken_since, other.aged
        other.served()

    def begin_stay(self) -> None:
        self.keeps_place = self.is_due
        self.served()
        self.stay_tokens = 0

    def served(self) -> None:
        """It got something: nobody overtakes it any more."""
        self.overtaken, self.overtaken_since, self.aged = 0, None, False

    def end_stay(self) -> None:
        """Gives its place up to another."""
        self.preemptions += 1

    def yields_to(self, other: Turn) -> bool:
        """Whether work of a higher lane may take its place now."""
        return self.priority > other.priority and self.stay_tokens >= self.owed


class HasTurn(Protocol):
    @property
    def turn(self) -> Turn: ...


def turn_of(request: EngineRequest) -> Turn:
    return Turn(request.priority, math.inf if request.deadline_ms is None else request.deadline_ms)
