"""Everybody runs in turn; who is not running stands still."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.engine_bench.rounds import Race, Turn, loaded
from benchmarks.shared.obedient import Obedient
from benchmarks.shared.processes import wait_until
from benchmarks.shared.report import CannotRun

OBEYS = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    if line.strip() == "end":
        sys.exit("it had enough")
    print(json.dumps({"seconds": 0.5, "tokens": 8}), flush=True)
"""


@dataclass
class Scripted:
    """Takes its turns as `tell` says."""

    tell: Callable[[], float]

    def take_turn(self) -> Turn:
        return Turn({"batched": self.tell()}, others=0.0)


def test_turns_are_interleaved() -> None:
    race, order = Race(), list[str]()

    def enter(name: str) -> None:
        def note() -> float:
            order.append(name)
            return len(order)

        race.enter(name, Scripted(note))

    for name in "abc":
        enter(name)
    race.run(2)
    assert order == list("abcabc")
    assert [turn.figures["batched"] for turn in race.turns["b"]] == [2, 5]


def test_who_falls_out_is_told_and_the_others_go_on() -> None:
    race = Race()
    left = iter([1.0])

    def fall() -> float:
        for rate in left:
            return rate
        raise CannotRun("it had enough")

    race.enter("weak", Scripted(fall))
    race.enter("strong", Scripted(lambda: 1.0))
    race.run(3)
    assert race.fallen == {"weak": "it had enough"}
    assert {name: len(turns) for name, turns in race.turns.items()} == {"strong": 3}


def state(process: Obedient) -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_runner_stands_still_before_and_behind_its_turn(tmp_path: Path) -> None:
    seen: list[Obedient] = []

    def act(process: Obedient) -> dict[str, float]:
        seen.append(process)
        wait_until(lambda: state(process) != "T", "it went on")  # a signal takes a moment to arrive
        return {"batched": process.tell("batch")["tokens"]}

    with loaded([sys.executable, "-c", OBEYS], act, tmp_path / "log", cwd=tmp_path) as runner:
        assert runner.take_turn().figures == {"batched": 8}
        wait_until(lambda: state(seen[0]) == "T", "it stood still")
        assert runner.take_turn().figures == {"batched": 8}
    assert not Path(f"/proc/{seen[0].pid}").exists()


def test_the_reason_of_a_death_is_its_last_words(tmp_path: Path) -> None:
    def act(process: Obedient) -> dict[str, float]:
        process.tell("end")
        return {}

    with (
        loaded([sys.executable, "-c", OBEYS], act, tmp_path / "log", cwd=tmp_path) as runner,
        pytest.raises(CannotRun, match="it had enough"),
    ):
        runner.take_turn()


def test_who_does_not_load_cannot_run(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with (
        pytest.raises(CannotRun, match="no such model"),
        loaded(argv, lambda process: {}, tmp_path / "log", cwd=tmp_path),
    ):
        pass
