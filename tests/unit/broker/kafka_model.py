"""The delivery protocol on one Kafka partition as a random schedule of atomic actions, with the real fold.

One request partition, its events partition, many owners. Every atomic action of the real system is one step:
publish (also the same id again), fetch, commit, append, read, the two steps of a settling transaction,
freeze, wake, crash, take-over. Owners that lost the partition do not know it and go on. At the end, after a
healthy owner could finish: each request has one terminal record and one result line, and one text, whoever
reads it from wherever. A rule can be broken on purpose; `test_fold` sees to it that each is caught.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.broker.events import Delta, Event, Fence, Finished, Started
from headrace.broker.fold import Fold

TOKENS = 3
MUTANTS = (
    "read, then fence",
    "no fence",
    "the same epoch",
    "settle unfenced",
    "unstable offsets",
    "twins emit",
    "readers start without a fence",
)


class Entry(NamedTuple):
    """One record of the events partition; `request` is None for a fence of the whole partition."""

    request: int | None
    event: Event


def token(request: int, before: str) -> str:
    return hashlib.sha256(f"{request}|{before}".encode()).hexdigest()[:3]


def answer(request: int) -> str:
    text = ""
    for _ in range(TOKENS):
        text += token(request, text)
    return text


@dataclass(slots=True)
class Model:
    """The cluster. `mutant` names the broken rule, `fold_type` the fold that everybody reads with."""

    random: random.Random
    mutant: str = ""
    fold_type: type[Fold] = Fold
    log: list[Entry] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    published: dict[int, int] = field(default_factory=dict)  # request: length of the log then
    owners: list[Owner] = field(default_factory=list)
    epoch: int = 0
    done: frozenset[int] = frozenset()
    lines: list[int] = field(default_factory=list)
    pending: dict[int, tuple[int, int | None]] = field(default_factory=dict)  # open transactions

    def read(self, request: int, start: int = 0, end: int | None = None) -> Fold:
        state = self.fold_type()
        for entry in self.log[start:end]:
            if entry.request in (request, None):
                state.read(entry.event)
        return state

    def take_over(self) -> Owner:
        self.owners.append(Owner(self, len(self.owners)))
        return self.owners[-1]

    def publish(self) -> None:
        again = bool(self.requests) and self.random.random() < 0.25
        request = self.random.choice(self.requests) if again else len(self.published)
        self.published.setdefault(request, len(self.log))
        self.requests.append(request)

    def run(self) -> None:
        for _ in range(self.random.randrange(20, 120)):
            self._one_action()
        last = self.take_over()
        for _ in range(5_000):
            if len(self.done) == len(self.requests) or not last.alive:
                break
            last.step()
            self._wake_one(last, 0.5)
        for _ in range(60):
            self._wake_one(last, 1.0)

    def _one_action(self) -> None:
        if not self.owners or self.random.random() < 0.05:
            self.take_over()
        if len(self.requests) < 6 and self.random.random() < 0.12:
            self.publish()
        alive = [owner for owner in self.owners if owner.alive]
        if alive:
            rightful = self.owners[-1]
            chosen = rightful if rightful.alive and self.random.random() < 0.6 else self.random.choice(alive)
            chosen.step()

    def _wake_one(self, last: Owner, chance: float) -> None:
        zombies = [owner for owner in self.owners if owner.alive and owner is not last]
        if zombies and self.random.random() < chance:
            self.random.choice(zombies).step()

    def check(self) -> None:
        for request, position in self.published.items():
            whole = self.read(request)
            assert whole.terminal is not None, f"{request}: no terminal record"
            assert whole.text == answer(request), f"{request}: {whole.pieces} is not one text"
            assert self.lines.count(request) == 1, f"{request}: {self.lines.count(request)} result lines"
            late = self.read(request, self._start_of_late_reader(position))
            assert late.text == whole.text, f"{request}: a reader that starts later shows another text"

    def _start_of_late_reader(self, position: int) -> int:
        """The last fence in force when the request was published."""
        if self.mutant == "readers start without a fence":
            return position
        fences = [
            (entry.event.epoch, at)
            for at, entry in enumerate(self.log[:position])
            if isinstance(entry.event, Fence)
        ]
        top = max((epoch for epoch, _ in fences), default=0)
        return max((at for epoch, at in fences if epoch == top), default=0)


@dataclass(slots=True)
class Owner:
    """One consumer process. Each `yield` of its program ends one atomic action."""

    model: Model
    number: int
    alive: bool = True
    states: dict[int, Fold] = field(default_factory=dict)
    runner: dict[int, int] = field(default_factory=dict)  # request: offset of the delivery that runs it
    program: Iterator[None] = field(init=False)

    def __post_init__(self) -> None:
        self.program = self._run()

    def step(self) -> None:
        self.alive = self.alive and next(self.program, self) is None

    @property
    def rightful(self) -> bool:
        return self.model.owners[-1] is self

    def _run(self) -> Iterator[None]:
        model, mutant = self.model, self.model.mutant
        if mutant != "unstable offsets":
            model.pending.clear()
        done, epoch = model.done, max(1, model.epoch + (mutant != "the same epoch"))
        yield
        if not self.rightful:
            return
        model.epoch = epoch
        yield
        end = len(model.log)
        if mutant not in ("read, then fence", "no fence"):
            model.log.append(Entry(None, Fence(epoch)))
            end += 1
        yield
        restored = model.log[:end]
        if mutant == "read, then fence":
            yield
            model.log.append(Entry(None, Fence(epoch)))
        yield from self._serve(epoch, set(done), restored)

    def _serve(self, epoch: int, settled: set[int], restored: list[Entry]) -> Iterator[None]:
        runs: dict[int, Iterator[bool | None]] = {}
        while True:
            for offset, request in enumerate(self.model.requests):
                if offset not in settled and offset not in runs and self.model.random.random() < 0.5:
                    self._restore(request, restored)
                    runs[offset] = self._deliver(epoch, offset, request)
            if self.model.random.random() < 0.1:
                self.model.log.append(Entry(None, Fence(epoch)))
            for offset in self.model.random.sample(sorted(runs), len(runs)):
                settles = next(runs[offset])
                if settles is False:
                    return
                if settles:
                    del runs[offset]
                    settled.add(offset)
                yield
            yield

    def _restore(self, request: int, restored: list[Entry]) -> None:
        if request in self.states:
            return
        state = self.states[request] = self.model.fold_type()
        for entry in restored:
            if entry.request in (request, None):
                state.read(entry.event)
        if state.started is not None:
            self.runner[request] = int(state.started.delivery)

    def _append(self, request: int, event: Event) -> None:
        self.model.log.append(Entry(request, event))
        self.states[request].read(event)

    def _deliver(self, epoch: int, offset: int, request: int) -> Iterator[bool | None]:
        """One delivery. Yields None between actions, True once settled, False when that was refused."""
        state = self.states[request]
        mine = self.runner.setdefault(request, offset) == offset
        if mine and not state.ended:
            yield from self._write(epoch, offset, request, state)
        while not state.ended and self.runner[request] not in self.model.done:
            yield None  # a twin waits for the delivery that runs
        yield from self._settle(offset, request if mine or self.model.mutant == "twins emit" else None)

    def _write(self, epoch: int, offset: int, request: int, state: Fold) -> Iterator[None]:
        self._append(request, Started(epoch, "", str(offset), 1, b"", "", len(state.token_ids)))
        yield
        while len(state.token_ids) < TOKENS:
            piece = token(request, state.text)
            before = len(state.token_ids)
            self._append(request, Delta(epoch, state.next_seq, (before,), piece))
            if len(state.token_ids) == before:
                return  # a broken fold refuses its owner's own token
            yield
            if self.model.random.random() < 0.1:
                self.model.log.append(self.model.log[-1])
                yield
        self._append(request, Finished(epoch, "stop"))
        yield

    def _settle(self, offset: int, line: int | None) -> Iterator[bool | None]:
        model = self.model
        while True:
            if not self.rightful and model.mutant != "settle unfenced":
                yield False
            model.pending[self.number] = (offset, line)
            yield None
            if self.number in model.pending:
                break
        del model.pending[self.number]
        model.done |= {offset}
        if line is not None:
            model.lines.append(line)
        yield True
