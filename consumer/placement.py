"""Which requests are in the engine, and which of them may be there together.

Each placing gives a request a new key, so what an engine still says about an earlier one is told apart
and ignored. Normally all go in at once, and the engine chooses among them; while there are suspects,
`quarantine` says who may. A key that was aborted counts as inside until the engine has said its last word of
it: only then is a request that is alone really alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from headrace.broker.events import Finished
from headrace.broker.message import Lane
from headrace.consumer import failures
from headrace.consumer.engine_process import EngineHandle
from headrace.consumer.inflight import InFlight, Phase
from headrace.consumer.quarantine import Quarantine
from headrace.consumer.turn import Turn
from headrace.gpu_engine.api import Abort, Add, Output

_PRIORITY = {lane: number for number, lane in enumerate(Lane)}


class Placement:
    """`on_change` is told of each request that received something, ended, or has something to write. `clock`:
    that of `InFlight`. `trials`: whose trial it is, here or elsewhere."""

    def __init__(
        self,
        on_change: Callable[[InFlight], None],
        clock: Callable[[], float],
        quarantine_after: int,
        trials: Turn,
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._quarantine = Quarantine(quarantine_after, trials)
        self._engine: EngineHandle | None = None
        self._waiting: dict[InFlight, None] = {}  # in order of arrival; one position may come twice
        self._placed: dict[str, InFlight] = {}  # by key
        self._heard: set[str] = set()  # keys of those that the engine has said something of, but errors
        self._leaving: set[str] = set()  # keys that were aborted and forgotten
        self._keys = itertools.count()

    @property
    def has_work(self) -> bool:
        """The engine owes outputs."""
        return not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Nothing is in the engine, nor on its way out."""
        return not (self._placed or self._leaving)

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
        self._waiting[flight] = None
        self._place()

    def abort(self, flight: InFlight) -> None:
        """Asks the engine to stop it; its last output comes as any other."""
        if self._engine is not None and flight.key is not None:
            self._engine.send(Abort(flight.key))

    def remove(self, flight: InFlight) -> None:
        """Out of the engine, whatever becomes of it; nothing more will be received for it."""
        self._waiting.pop(flight, None)
        self._expel(flight)
        self._place()

    def written(self, flight: InFlight) -> None:
        """Its log moved on."""
        if flight is self._quarantine.on_trial:
            self._place()

    def look_again(self) -> None:
        """A trial elsewhere is over."""
        self._place()

    def attach(self, engine: EngineHandle) -> None:
        """An engine is ready: all requests go in, with the tokens that they have."""
        self._engine = engine
        self._place()

    def detach(self) -> list[InFlight]:
        """The engine died. Returns those that were in it; they wait for the next one, and their logs say
        why."""
        self._engine = None
        victims, alone = self.in_engine, len(self._placed) == 1 and not self._leaving
        self._leaving.clear()
        chosen = self._quarantine.broken_off()
        for flight in victims:
            flight.suspicion.engine_died(alone=alone)
            self._take_out(flight)
        for flight in dict.fromkeys([*victims, *([chosen] if chosen is not None else [])]):
            flight.state_deaths(alone=False)
            self._on_change(flight)
        return victims

    def convict(self, flight: InFlight) -> None:
        """Ends a request that is proved to kill engines."""
        self._waiting.pop(flight, None)
        flight.fail(failures.poison(flight.suspicion.deaths), self._clock())
        self._on_change(flight)

    def receive(self, outputs: Sequence[Output]) -> int:
        """Takes what a step brought; returns how many requests it brought to their own ends. One that was
        cancelled, or refused, says nothing of the engine: it may die of all others."""
        finished, now = 0, self._clock()
        for output in outputs:
            flight = self._placed.get(output.id)
            if flight is None:
                if output.finish_reason is not None or output.error is not None:
                    self._leaving.discard(output.id)
                continue
            flight.received(output, now)
            if flight.phase is Phase.ENDING:
                finished += isinstance(flight.terminal(), Finished)
                self._end(flight, output)
            elif output.error is None:
                self._heard.add(output.id)
            self._on_change(flight)
        if outputs:
            self._place()
        return finished

    # ----------------------------------------------------------------------------------- who goes in

    def _place(self) -> None:
        if self._engine is None:
            return
        tried = self._quarantine.end_if_over()
        suspects = self._quarantine.suspects(self._waiting)
        if suspects and self._quarantine.may_begin():
            if tried is not None:
                self._displace(tried)
            self._try(suspects[0])
        if self._quarantine.on_trial is None:
            for flight in list(self._waiting):
                if flight not in suspects:
                    self._put(flight)
        elif self._quarantine.may_enter(self):
            self._put(self._quarantine.on_trial)

    def _try(self, suspect: InFlight) -> None:
        for flight in self.in_engine:
            if flight.doom is None:  # else it is on its way out, with its last words
                self._displace(flight)
        self._quarantine.begin(suspect)
        self._on_change(suspect)

    def _put(self, flight: InFlight) -> None:
        assert self._engine is not None
        del self._waiting[flight]
        key = f"{next(self._keys)}"
        self._placed[key] = flight
        self._engine.send(Add(flight.placed(key, _PRIORITY[flight.delivery.message.lane])))

    def _displace(self, flight: InFlight) -> None:
        """It makes room for a trial, and goes in again after it."""
        self._expel(flight)
        if flight.phase is Phase.QUEUED:
            self._waiting[flight] = None

    def _expel(self, flight: InFlight) -> None:
        if flight.key is None:
            return
        if self._engine is not None:
            self.abort(flight)
            self._leaving.add(flight.key)
        self._forget(flight)

    def _forget(self, flight: InFlight) -> None:
        assert flight.key is not None
        del self._placed[flight.key]
        self._heard.discard(flight.key)
        flight.displaced(self._clock())

    def _end(self, flight: InFlight, last: Output) -> None:
        """It has failed or is whole. One of several answers that fails is the end of all, and the others are
        to stop, unless none of them was taken in."""
        if flight.answers.others_are_open and not self._was_refused(last):
            self._expel(flight)
        else:
            self._forget(flight)

    def _was_refused(self, last: Output) -> bool:
        """Whether the engine never had it: that is said once, for all its answers, and nothing follows."""
        return last.error is not None and not failures.is_bug(last.error) and last.id not in self._heard

    def _take_out(self, flight: InFlight) -> None:
        """It waits for its next placing, unless it was to be stopped anyway."""
        self._forget(flight)
        if flight.phase is Phase.QUEUED:
            self._waiting[flight] = None
