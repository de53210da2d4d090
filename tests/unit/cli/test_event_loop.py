"""Services run on their event loop with the turns of threads that they ask for."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from headrace.cli.event_loop import TURN_S, run_service


@pytest.fixture(autouse=True)
def collecting_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


async def turn_ms() -> int:
    return round(sys.getswitchinterval() * 1000)


def test_a_service_keeps_pythons_turns() -> None:
    assert run_service(turn_ms()) == 5


def test_a_service_whose_threads_compute_may_ask_for_shorter_ones() -> None:
    assert run_service(turn_ms(), turn_s=TURN_S) == 1


def test_what_else_runs_in_the_process_finds_its_turns_as_they_were() -> None:
    run_service(turn_ms(), turn_s=TURN_S)
    assert round(sys.getswitchinterval() * 1000) == 5
