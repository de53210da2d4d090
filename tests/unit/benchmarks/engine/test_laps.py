"""What a contestant's answers come to."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.engine_bench.laps import BATCHED, MEMORY, SINGLE, TTFT, all_laps, batch_and_single
from benchmarks.shared.obedient import Obedient


class Scripted(Obedient):
    """A batch of 100 tokens takes 2 s; a single stream 0.5 s for its first token and 0.1 s for each other."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @property
    def pid(self) -> int:
        return os.getpid()

    def tell(self, line: str) -> dict[str, Any]:
        self.heard.append(line)
        if line == "batch":
            return {"seconds": 2.0, "tokens": 100}
        tokens = int(line.removeprefix("single "))
        return {"seconds": 0.5 + 0.1 * (tokens - 1), "tokens": tokens}


def test_a_turn_brings_batch_stream_first_token_and_memory() -> None:
    figures = all_laps(128)(Scripted())
    assert figures[BATCHED] == 50
    assert figures[SINGLE] == pytest.approx(10)
    assert figures[TTFT] == pytest.approx(500)
    assert figures[MEMORY] > 1


def test_a_prompt_is_no_part_of_the_single_streams_speed() -> None:
    process = Scripted()
    all_laps(16)(process)
    assert process.heard == ["batch", *["single 1"] * 3, "single 16"]


def test_a_turn_without_laps_for_the_first_token_counts_it_in() -> None:
    assert batch_and_single(16)(Scripted()) == {BATCHED: 50, SINGLE: pytest.approx(8)}
