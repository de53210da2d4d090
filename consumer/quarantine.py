"""Trials: which request kills engines, and which only stood beside it.

A request that saw `after` deaths in a row without bringing a token, of engines and of whole consumers, is a
suspect. All suspects stay out of the engine, and are tried one by one:

    chosen ──all others leave the engine, `started{alone}` is in the log──► alone in the engine
       alone in the engine ──first token, in the log──► cleared ──► the next suspect … ──► all in
       alone in the engine ──the engine dies──► a death alone: one more, and it is tried again, or convicted

Only a death alone counts against a request. The log carries both counts (`Started.deaths`, `lone_deaths`), so
a request keeps its past when it goes to another consumer; and since the log says `alone` before the engine
gets it, a consumer that is killed as a whole by it counts as a death alone, too.

Innocents become suspects: whatever was in flight, without a token yet, at a consumer that was killed twice.
So a trial must be short: it is one prefill and one token, and those who wait for it have lost nothing but
that time. They keep their tokens; their prompts are mostly in the prefix cache when they go in again.

A body may kill the consumer itself, before its request gets anywhere: while it is parsed or tokenised. Both
get bounded input only (`prepare`), and their errors and panics end the one request; what remains is a crash
of the interpreter. For that the same rule holds: a delivery of which an owner may have died is marked in the
log before it is read (`Outbox.mark`), a suspect is read alone (`reading_room`), and there is one trial at a
time, there or in the engine: else whoever is on trial here would pay for a reader's death.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.consumer.inflight import InFlight, Phase
from headrace.consumer.turn import Turn


class Inside(Protocol):
    """What a trial needs to know of the engine."""

    @property
    def is_empty(self) -> bool:
        """Nothing is in the engine, nor on its way out."""


class Quarantine:
    """Who is on trial. Pure: the placement asks it, and moves the requests. `turn`: that of trials."""

    def __init__(self, after: int, turn: Turn) -> None:
        self._after = after
        self._turn = turn
        self.on_trial: InFlight | None = None

    def suspects(self, flights: Iterable[InFlight]) -> list[InFlight]:
        return [flight for flight in flights if flight.suspicion.deaths.all >= self._after]

    def may_begin(self) -> bool:
        """Whether a trial may begin: none is on, here or where bodies are read."""
        return self.on_trial is None and self._turn.take(self)

    def begin(self, flight: InFlight) -> None:
        """Chosen: the log must say that it will be alone before it is."""
        assert self.may_begin()
        self.on_trial = flight
        flight.state_deaths(alone=True)

    def may_enter(self, engine: Inside) -> bool:
        """Whether the chosen one goes in now."""
        chosen = self.on_trial
        return chosen is not None and chosen.phase is Phase.QUEUED and chosen.stated_alone and engine.is_empty

    def end_if_over(self) -> InFlight | None:
        """The one that was on trial, if it is cleared or has left; the next trial may begin."""
        chosen = self.on_trial
        if chosen is None or not (chosen.phase is Phase.ENDING or self._cleared(chosen)):
            return None
        self._over()
        return chosen

    def broken_off(self) -> InFlight | None:
        """The engine died. Returns the one that was about to be tried."""
        chosen = self.on_trial
        self._over()
        return chosen

    def _over(self) -> None:
        self.on_trial = None
        self._turn.give_back(self)

    def _cleared(self, flight: InFlight) -> bool:
        return flight.phase is Phase.RUNNING and flight.proved_innocent
