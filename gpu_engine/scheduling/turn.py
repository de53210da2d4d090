"""Whose turn it is: what order, ageing and giving way need to know of a request.

Requests are served by lane, then by deadline, then as they came. Three rules bound what that does to those
at the end of the line:

- **Ageing.** The oldest request of a lane that others overtake (they came later and joined first) is due once
  that has happened MAX_OVERTAKES times, or goes on for `priority_ageing_ms`. What is due has the first claim
  on what becomes free. One of a higher lane may still go ahead of it, but only in the place of running work
  that gives way to it; so that happens at most as often as there is such work.
- **Giving way.** Work of a higher lane that finds no room takes the place of running work of a lower one: the
  lowest lane first, in it the one with least computed work. Never of its own lane, never of a higher one.
- **Stays.** One that was preempted keeps its next place until it has brought 16 new tokens, the one after
  until it has brought 32, then 64 each time; one that joined because it was due, 8. So an answer of n tokens
  gives way at most 3 + n / 64 times, and never recomputes for nothing. (Want of memory for running work knows
  no stays: it takes the lowest lane, and admission sees to it that this is rare.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from headrace.gpu_engine.api import EngineRequest

MAX_OVERTAKES = 16
"""How often others may go first before a request is due."""

SHORTEST_STAY, LONGEST_STAY = 8, 64


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
    def stay(self) -> int:
        """New tokens for which a place is kept."""
        if self.preemptions == 0 and not self.keeps_place:
            return 0
        return min(LONGEST_STAY, SHORTEST_STAY << min(self.preemptions, 3))

    def overtake(self, now: float) -> None:
        """Another went first."""
        self.overtaken += 1
        if self.overtaken_since is None:
            self.overtaken_since = now

    def inherit(self, other: Turn) -> None:
        """Comes back ahead of one that has waited in vain: it is the lane that others overtook."""
        self.overtaken, self.overtaken_since, self.aged = other.overtaken, other.overtaken_since, other.aged

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
        return self.priority > other.priority and self.stay_tokens >= self.stay


class HasTurn(Protocol):
    @property
    def turn(self) -> Turn: ...


def turn_of(request: EngineRequest) -> Turn:
    return Turn(request.priority, math.inf if request.deadline_ms is None else request.deadline_ms)
