"""The arithmetic of what is measured about ourselves."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch

from benchmarks.engine_bench import foreign
from benchmarks.engine_bench.apart import apart
from benchmarks.engine_bench.distance import compare
from benchmarks.engine_bench.foreign import Others, busy_seconds
from benchmarks.engine_bench.kv_waste import wasted_share
from benchmarks.engine_bench.models import made_once
from benchmarks.engine_bench.telling import told_cores
from benchmarks.engine_bench.workload import Row
from benchmarks.shared.environments import Packages
from benchmarks.shared.report import CannotRun

TICKS = os.sysconf("SC_CLK_TCK")


def test_waste_is_what_the_last_block_has_left_in_every_step() -> None:
    """15 tokens of prompt in the first step, then 16 in the second: one slot of 32 is free."""
    assert wasted_share([Row([65] * 15, 2)], slots=1) == pytest.approx(1 / 32)


def test_who_has_ended_holds_nothing_any_more() -> None:
    """One after the other in a single slot: each of them is as the one above."""
    assert wasted_share([Row([65] * 15, 2)] * 3, slots=1) == pytest.approx(1 / 32)


def test_full_blocks_waste_nothing() -> None:
    assert wasted_share([Row([65] * 32, 1)] * 3, slots=3) == 0


def test_the_same_logits_are_at_no_distance() -> None:
    logits = torch.randn(4, 9)
    found = compare(logits, logits)
    assert found.divergence == pytest.approx(0, abs=1e-12)
    assert found.same_choice == 1


def test_divergence_is_that_of_kullback_and_leibler() -> None:
    expected, found = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log()
    distance = compare(expected, found)
    assert distance.divergence == pytest.approx(0.5 * math.log(3))
    assert distance.same_choice == 0


def test_busy_time_counts_no_idling_and_no_waiting(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(f"cpu  {TICKS} {TICKS} {TICKS} 99999 88888 0 0 {2 * TICKS} 0 0\ncpu0 1\n")
    assert busy_seconds(tmp_path / "stat") == pytest.approx(5)


def test_our_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 2 s all were busy for 3 s, and ours for 2 of them."""
    monkeypatch.setattr(foreign, "busy_seconds", iter([10.0, 13.0]).__next__)
    spent = iter([5.0, 7.0])
    monkeypatch.setattr(foreign, "cpu_seconds", lambda _pids: next(spent))
    monkeypatch.setattr("time.perf_counter", iter([100.0, 102.0]).__next__)
    assert Others(list).cores() == pytest.approx(0.5)


def test_a_machine_that_others_use_is_marked() -> None:
    assert told_cores(0.15) == "others 0.15 core"
    assert told_cores(0.16) == "others 0.16 core (DISTURBED)"


def test_what_is_made_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()

    for _ in range(2):
        assert made_once(tmp_path / "deep" / "model", make).is_dir()
    assert len(made) == 1


def test_what_was_left_unfinished_is_made_anew(tmp_path: Path) -> None:
    def break_off(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise CannotRun("no space left")

    with pytest.raises(CannotRun):
        made_once(tmp_path / "model", break_off)
    assert not (tmp_path / "model").exists()
    assert list(made_once(tmp_path / "model", Path.mkdir).iterdir()) == []


def test_an_environment_is_known_by_all_that_shapes_it() -> None:
    keys = {
        Packages(("a",), ()).key,
        Packages(("a",), (), bare=("b",)).key,
        Packages(("a",), (), unwanted=("b",)).key,
        Packages(("a",), (), overrides=("c==1",)).key,
    }
    assert len(keys) == 4


def test_a_measurement_whose_process_dies_cannot_run() -> None:
    with pytest.raises(CannotRun, match="died"):
        apart(os._exit, 9)


def test_a_measurement_runs_in_a_process_of_its_own() -> None:
    pid, cores = apart(os.getpid)
    assert pid != os.getpid()
    assert cores >= 0
