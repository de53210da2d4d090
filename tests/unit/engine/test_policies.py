"""Batching policies: when requests join, on the same engine and in the same steps."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.scheduling.policies import (
    BUILT_IN,
    GROUP,
    BatchState,
    Continuous,
    PolicyUnusable,
    load_policy,
)
from headrace.gpu_engine.scheduling.step import Chunk
from tests.unit.engine.fakes import Bench, expected_tokens, request

EXAMPLES = Path(__file__).parents[3] / "examples"
PACKAGED = """\
from headrace.gpu_engine.scheduling.policies import Static

class OneByOne(Static):
    def let_in(self, state):
        return min(1, super().let_in(state))
"""


class Clock:
    """Milliseconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms / 1000


def worked_example(policy: str) -> dict[str, list[int]]:
    """The steps in which A (6 tokens), B (2) and C (3) run, with two places."""
    bench = Bench(max_batch_size=2, max_batch_tokens=64, batching_policy=policy, max_wait_ms=0)
    for name, tokens in (("A", 6), ("B", 2), ("C", 3)):
        bench.add(request(name, 4, tokens))
    bench.run()
    return {
        name: [plan.step for plan in bench.runner.plans if name in ran(plan.chunks)]
        for name in ("A", "B", "C")
    }


def ran(chunks: Iterable[Chunk]) -> set[str]:
    return {chunk.request_id for chunk in chunks}


def test_continuous_batching_gives_a_free_place_away_in_the_next_step() -> None:
    assert worked_example("continuous") == {"A": [1, 2, 3, 4, 5, 6], "B": [1, 2], "C": [3, 4, 5]}


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_a_fixed_batch_runs_to_its_end_with_places_unused(policy: str) -> None:
    assert worked_example(policy) == {"A": [1, 2, 3, 4, 5, 6], "B": [1, 2], "C": [7, 8, 9]}


# ------------------------------------------------------------------------------ dynamic


def dynamic(clock: Clock, **config: Any) -> Bench:
    limits = {"max_batch_size": 3, "max_waiting_tokens": 100, "max_wait_ms": 50} | config
    return Bench(max_batch_tokens=64, batching_policy="dynamic", clock=clock, **limits)


def test_a_dynamic_batch_waits_for_more_requests() -> None:
    bench = dynamic(Clock())
    bench.add(request("r", 4, 1))
    assert bench.step() == []
    assert (bench.engine.num_running, bench.engine.num_waiting, bench.engine.has_work) == (0, 1, True)
    bench.engine.abort("r")
    bench.run()


def test_a_dynamic_batch_starts_when_it_is_full() -> None:
    bench = dynamic(Clock())
    for number in range(4):
        bench.add(request(f"r{number}", 4, 2))
    assert {output.id for output in bench.step()} == {"r0", "r1", "r2"}
    bench.engine.abort("r3")
    bench.run()


def test_a_dynamic_batch_starts_when_enough_tokens_wait() -> None:
    bench = dynamic(Clock(), max_waiting_tokens=20)
    bench.add(request("first", 19, 1))
    assert bench.step() == []
    bench.add(request("second", 1, 1))
    assert {output.id for output in bench.step()} == {"first", "second"}


def test_a_dynamic_batch_starts_when_its_first_request_has_waited_long_enough() -> None:
    clock = Clock()
    bench = dynamic(clock)
    bench.add(request("first", 4, 1))
    clock.ms = 49
    bench.add(request("second", 4, 1))
    assert bench.step() == []
    clock.ms = 50
    assert {output.id for output in bench.step()} == {"first", "second"}


def test_the_time_that_a_batch_ran_counts_for_those_who_waited_meanwhile() -> None:
    clock = Clock()
    bench = dynamic(clock, max_wait_ms=5)
    bench.add(request("first", 4, 2))
    clock.ms = 5
    bench.step()
    bench.add(request("second", 4, 1))
    clock.ms = 10
    assert {output.id for output in bench.step()} == {"first"}
    assert {output.id for output in bench.step()} == {"second"}


# ------------------------------------------------------------------------------ static


def test_a_static_batch_starts_at_once_and_takes_nobody_in() -> None:
    bench = Bench(max_batch_size=4, batching_policy="static")
    bench.add(request("first", 4, 3))
    bench.step()
    bench.add(request("second", 4, 1))
    assert {output.id for _ in range(2) for output in bench.step()} == {"first"}
    assert {output.id for output in bench.step()} == {"second"}


def test_a_batch_joins_whole_though_its_prompts_take_several_steps() -> None:
    bench = Bench(max_batch_size=3, max_batch_tokens=8, batching_policy="static")
    for number in range(4):
        bench.add(request(f"r{number}", 8, 12))
    for _ in range(8):
        bench.step()
    assert (bench.engine.num_running, bench.engine.num_waiting) == (3, 1)
    bench.run()


def test_one_that_is_preempted_for_want_of_memory_comes_back_to_its_batch() -> None:
    bench = Bench(num_blocks=12, max_batch_tokens=64, expected_output=1, batching_policy="static")
    requests = [request(f"r{number}", 8, 16) for number in range(3)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert bench.engine.preemptions > 0
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


def test_higher_lanes_are_in_the_next_batch_and_lower_ones_not_passed_over_for_ever() -> None:
    bench = Bench(max_batch_size=1, batching_policy="static")
    bench.add(request("background", 4, 1, priority=3))
    for number in range(40):
        bench.add(request(f"user{number}", 4, 1, priority=0))
        bench.step()
        if bench.answers["background"].last is not None:
            break
    assert 10 < number < 30
    bench.run()


# ------------------------------------------------------------------------------ any policy


class Whim:
    """Lets in as many as it likes, and somebody where nobody is active."""

    def __init__(self, whims: list[int]) -> None:
        self.whims = whims

    def let_in(self, state: BatchState) -> int:
        whim = self.whims[state.num_gathered % len(self.whims)]
        return whim if state.num_active else max(1, whim)


@settings(max_examples=60, deadline=None)
@given(
    whims=st.lists(st.integers(-1, 9), min_size=1, max_size=4),
    places=st.integers(1, 5),
    budget=st.integers(1, 20),
    lanes=st.lists(st.integers(0, 3), min_size=1, max_size=9),
)
def test_whatever_a_policy_does_all_requests_end_and_no_output_changes(
    whims: list[int], places: int, budget: int, lanes: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.gpu_engine.engine.load_policy", lambda config: Whim(whims))
        bench = Bench(num_blocks=24, max_batch_size=places, max_batch_tokens=budget)
    requests = [request(f"r{number}", 3 + number, 6, priority=lane) for number, lane in enumerate(lanes)]
    for one in requests:
        bench.add(one)
        bench.step()
    answers = bench.run()
    assert [answers[one.id].token_ids for one in requests] == [expected_tokens(one, 999) for one in requests]


# ------------------------------------------------------------------------------ plug-ins


def test_the_example_policy_waits_until_half_of_the_places_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    bench = Bench(
        max_batch_size=4, max_batch_tokens=64, batching_policy="refill_policy:Refill", clock=Clock()
    )
    for number, tokens in enumerate([2, 4, 6, 8, 2, 2]):
        bench.add(request(f"r{number}", 4, tokens))
    bench.run()
    assert [len(plan.chunks) for plan in bench.runner.plans] == [4, 4, 3, 3, 4, 4, 1, 1]


def test_a_policy_is_found_by_the_entry_point_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_by_one.py").write_text(PACKAGED)
    about = tmp_path / "one_by_one-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: one-by-one\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{GROUP}]\none-by-one = one_by_one:OneByOne\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    bench = Bench(batching_policy="one-by-one")
    for number in range(3):
        bench.add(request(f"r{number}", 4, 2))
    bench.run()
    assert [len(plan.chunks) for plan in bench.runner.plans] == [1] * 6


def test_the_built_in_policies_are_entry_points_too() -> None:
    installed: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=GROUP)}
    assert {name: installed[name].load() for name in BUILT_IN} == dict(BUILT_IN)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("best", "no batching policy 'best'; there are continuous, dynamic, static"),
        ("nowhere.at.all:Policy", "cannot be imported"),
        ("headrace.gpu_engine.scheduling.policies:Nothing", "cannot be imported"),
    ],
)
def test_a_policy_that_cannot_be_had_is_named(name: str, sentence: str) -> None:
    with pytest.raises(PolicyUnusable, match=sentence):
        load_policy(EngineConfig(batching_policy=name))


def test_without_a_word_batching_is_continuous() -> None:
    assert isinstance(load_policy(EngineConfig()), Continuous)
