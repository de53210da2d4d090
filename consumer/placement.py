"""Which requests are in the engine, and which of them may be there together.

Each placing gives a request a new key, so what an engine still says about an earlier one is told apart
and ignored. A request that saw two deaths of its engine without bringing a token in between is a suspect:

    all suspects out ──► one alone in the engine ──first token──► cleared, out again ──► the next … ──► all in

Only a death alone in the engine counts against a request; its neighbours wait for the trials and go on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from headrace.broker.message import Lane
from headrace.consumer.engine_process import EngineHandle
from headrace.consumer.inflight import InFlight, Phase
from headrace.gpu_engine.api import Abort, Add, Output

_PRIORITY = {lane: number for number, lane in enumerate(Lane)}


class Placement:
    """`on_change` is told of each request that received something or ended. `clock`: that of `InFlight`."""

    def __init__(
        self, on_change: Callable[[InFlight], None], clock: Callable[[], float], quarantine_after: int = 2
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._quarantine_after = quarantine_after
        self._engine: EngineHandle | None = None
        self._waiting: dict[str, InFlight] = {}  # by position, in order of arrival
        self._placed: dict[str, InFlight] = {}  # by key
        self._keys = itertools.count()

    @property
    def has_work(self) -> bool:
        """The engine owes outputs."""
        return bool(self._placed)

    @property
    def attached(self) -> bool:
        """There is an engine that takes requests."""
        return self._engine is not None

    @property
    def in_engine(self) -> list[InFlight]:
        return list(self._placed.values())

    def add(self, flight: InFlight) -> None:
        """Into the engine, now or as soon as there is one that may take it."""
        assert flight.phase is Phase.QUEUED
        self._waiting[flight.position] = flight
        self._place()

    def abort(self, flight: InFlight) -> None:
        """Asks the engine to stop it; its last output comes as any other."""
        if self._engine is not None and flight.key is not None:
            self._engine.send(Abort(flight.key))

    def remove(self, flight: InFlight) -> None:
        """Out of the engine, whatever becomes of it; nothing more will be received for it."""
        self._waiting.pop(flight.position, None)
        if flight.key is not None:
            self.abort(flight)
            self._forget(flight)
        self._place()

    def attach(self, engine: EngineHandle) -> None:
        """An engine is ready: all requests go in, with the tokens that they have."""
        self._engine = engine
        self._place()

    def detach(self) -> list[InFlight]:
        """The engine died. Returns those that were in it; they wait for the next one."""
        self._engine = None
        victims = self.in_engine
        self._judge(victims)
        for flight in victims:
            self._take_out(flight)
            self._on_change(flight)
        return victims

    def convict(self, flight: InFlight) -> None:
        """Ends a request that is proved to kill engines."""
        self._waiting.pop(flight.position, None)
        flight.convict(self._clock())
        self._on_change(flight)

    def receive(self, outputs: Sequence[Output]) -> int:
        """Takes what a step brought; returns how many requests it finished."""
        finished, now = 0, self._clock()
        for output in outputs:
            flight = self._placed.get(output.id)
            if flight is None:
                continue
            flight.received(output, now)
            if flight.phase is Phase.ENDING:
                finished += 1
                self._forget(flight)
            elif not flight.barren:
                self._clear(flight)
            self._on_change(flight)
        if outputs:
            self._place()
        return finished

    # ----------------------------------------------------------------------------------- who goes in

    def _place(self) -> None:
        if self._engine is None:
            return
        if any(self._suspect(flight) for flight in self._waiting.values()) or self._on_trial():
            if not self._placed:
                self._put(next(flight for flight in self._waiting.values() if self._suspect(flight)))
            return
        for flight in list(self._waiting.values()):
            self._put(flight)

    def _put(self, flight: InFlight) -> None:
        assert self._engine is not None
        del self._waiting[flight.position]
        key = f"{next(self._keys)}"
        self._placed[key] = flight
        self._engine.send(Add(flight.placed(key, _PRIORITY[flight.delivery.message.lane])))

    def _forget(self, flight: InFlight) -> None:
        assert flight.key is not None
        del self._placed[flight.key]
        flight.displaced(self._clock())

    def _take_out(self, flight: InFlight) -> None:
        """It waits for its next placing, unless it was to be stopped anyway."""
        self._forget(flight)
        if flight.phase is Phase.QUEUED:
            self._waiting[flight.position] = flight

    # ------------------------------------------------------------------------------------ quarantine

    def _suspect(self, flight: InFlight) -> bool:
        return flight.barren_deaths >= self._quarantine_after

    def _on_trial(self) -> bool:
        return any(self._suspect(flight) for flight in self._placed.values())

    def _judge(self, victims: Sequence[InFlight]) -> None:
        barren = [flight for flight in victims if flight.barren]
        for flight in barren:
            flight.barren_deaths += 1
            flight.lonely_deaths += len(victims) == 1

    def _clear(self, flight: InFlight) -> None:
        """It brought a token: no suspect any more. If others still are, it makes room for their trial."""
        was_suspect = self._suspect(flight)
        flight.barren_deaths = flight.lonely_deaths = 0
        if was_suspect and any(self._suspect(other) for other in self._waiting.values()):
            self.abort(flight)
            self._take_out(flight)
