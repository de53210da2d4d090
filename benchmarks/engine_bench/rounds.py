"""The procedure of a race: everybody loads once, then all run in turn, round after round, the others held.

    load A, B, C ─► A  B  C │ A  B  C │ A  B  C        who is not running stands still (SIGSTOP)

So what slows the machine for a while slows all of a round, and their ratio stays what it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from benchmarks.engine_bench.foreign import Others
from benchmarks.shared.environments import Command
from benchmarks.shared.obedient import Obedient
from benchmarks.shared.processes import available_mib, family, last_words, running
from benchmarks.shared.report import CannotRun

Figures: TypeAlias = Mapping[str, float]
"""What a turn brought, by name."""

Act: TypeAlias = Callable[[Obedient], Figures]

LEAST_MIB: Final = 2048


@dataclass(frozen=True, slots=True)
class Turn:
    """`others`: cores that strangers used meanwhile."""

    figures: Figures
    others: float


class Entrant(Protocol):
    """Who takes turns in a race."""

    def take_turn(self) -> Turn:
        """Raises CannotRun where it ended."""


class Runner:
    """A process that is loaded and stands still until its turn."""

    def __init__(self, process: Obedient, act: Act) -> None:
        self._process, self._act = process, act

    def take_turn(self) -> Turn:
        """Raises CannotRun where it ended."""
        pid = self._process.pid
        _send(pid, signal.SIGCONT)
        try:
            others = Others(lambda: [os.getpid(), *family(pid)])
            return Turn(self._act(self._process), others.cores())
        finally:
            _send(pid, signal.SIGSTOP)


@contextlib.contextmanager
def loaded(
    argv: Command, act: Act, log: Path, *, env: Mapping[str, str] | None = None, cwd: Path
) -> Iterator[Runner]:
    """A process that has loaded, and has answered a little. Raises CannotRun with its last words."""
    if available_mib() < LEAST_MIB:
        raise CannotRun(f"less than {LEAST_MIB} MiB of memory are left beside the others")
    with running(argv, log, env=env, cwd=cwd) as process:
        obedient = Obedient(process, lambda: last_words(log))
        obedient.listen()
        obedient.tell("warm")
        _send(process.pid, signal.SIGSTOP)
        try:
            yield Runner(obedient, act)
        finally:
            _send(process.pid, signal.SIGCONT)  # so that it can end


class Race:
    """By name: `turns` of all who took part to the end, one a round; `fallen`: why others did not;
    `versions`: what each is."""

    def __init__(self) -> None:
        self.turns: dict[str, list[Turn]] = {}
        self.fallen: dict[str, str] = {}
        self.versions: dict[str, str] = {}
        self._entrants: dict[str, Entrant] = {}

    def enter(self, name: str, entrant: Entrant) -> None:
        self._entrants[name], self.turns[name] = entrant, []

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for name, entrant in list(self._entrants.items()):
                try:
                    self.turns[name].append(entrant.take_turn())
                except CannotRun as error:
                    self.drop(name, error)

    def drop(self, name: str, reason: object) -> None:
        self._entrants.pop(name, None)
        self.turns.pop(name, None)
        self.fallen[name] = str(reason)


def _send(pid: int, number: signal.Signals) -> None:
    """To the process and all that it started; one that is gone needs none."""
    for member in family(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)
