"""Brings contestants to the start: prepared, loaded, and standing still."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.engine_bench.contestants import ROOT, Contestant
from benchmarks.engine_bench.models import Model
from benchmarks.engine_bench.rounds import Act, Race, loaded
from benchmarks.engine_bench.settings import EngineBenchSettings
from benchmarks.engine_bench.workload import Workload
from benchmarks.shared.report import CannotRun

READER: Final = "the memory"
_READ_MIB: Final = 512  # far more than any cache holds


@contextlib.contextmanager
def race_between(
    settings: EngineBenchSettings,
    contestants: Sequence[Contestant],
    model: Model,
    workload: Workload,
    act: Act,
) -> Iterator[Race]:
    """Those who can take part have entered; the others have fallen, with the reason."""
    work = settings.folder(f"race-{model.name}")
    file = workload.write(work / "workload.json")
    race = Race()
    with contextlib.ExitStack() as stack:
        for number, contestant in enumerate(contestants):
            try:
                launch = contestant.prepare(settings, model)
                argv, log = [*launch.argv, launch.model, file], work / f"{number}.log"
                runner = stack.enter_context(loaded(argv, act, log, env=launch.env, cwd=launch.cwd))
            except CannotRun as error:
                race.drop(contestant.name, error)
            else:
                race.versions[contestant.name] = launch.version
                race.enter(contestant.name, runner)
        yield race


@contextlib.contextmanager
def reader_in(race: Race, settings: EngineBenchSettings, act: Act) -> Iterator[None]:
    """Lets the memory's speed be measured in every round, too, where there is memory for that."""
    argv = [sys.executable, "-m", "benchmarks.engine_bench.reader", str(settings.threads), str(_READ_MIB)]
    with contextlib.ExitStack() as stack:
        try:
            log = settings.folder("reader") / "log"
            race.enter(READER, stack.enter_context(loaded(argv, act, log, cwd=ROOT)))
        except CannotRun as error:
            race.drop(READER, error)
        yield
