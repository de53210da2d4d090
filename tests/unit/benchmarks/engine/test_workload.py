"""Everybody is given the same requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.engine_bench.workload import HIGHEST_ID, LOWEST_ID, SINGLE_PROMPT, draw_workload


def test_a_seed_draws_the_same_requests_each_time() -> None:
    assert draw_workload(3) == draw_workload(3)
    assert draw_workload(3) != draw_workload(4)


def test_the_first_seed_draws_what_it_always_drew() -> None:
    workload = draw_workload()
    assert (len(workload.rows), workload.tokens) == (64, 5916)
    assert sum(len(row.prompt) for row in workload.rows) == 8935


def test_prompts_and_answers_keep_to_their_bounds() -> None:
    for row in draw_workload().rows:
        assert 16 <= len(row.prompt) <= 256
        assert 8 <= row.tokens <= 64 or 128 <= row.tokens <= 256
        assert all(LOWEST_ID <= token < HIGHEST_ID for token in row.prompt)


def test_a_model_that_needs_it_gets_its_bos_and_nothing_else_changes() -> None:
    plain, begun = draw_workload(), draw_workload(bos=2)
    assert {row.prompt[0] for row in begun.rows} == {begun.single[0]} == {2}
    assert [row.prompt[1:] for row in begun.rows] == [row.prompt[1:] for row in plain.rows]
    assert [row.tokens for row in begun.rows] == [row.tokens for row in plain.rows]


def test_a_shared_prefix_stands_before_the_same_prompts() -> None:
    prompts = [row.prompt for row in draw_workload(shared_prefix=32).rows]
    assert len({tuple(prompt[:32]) for prompt in prompts}) == 1
    assert [prompt[32:] for prompt in prompts] == [row.prompt for row in draw_workload().rows]


def test_a_smoke_run_has_the_same_prompts_and_shorter_answers() -> None:
    whole, short = draw_workload(), draw_workload(shorter=8)
    assert [row.prompt for row in short.rows] == [row.prompt for row in whole.rows]
    assert all(
        short_row.tokens == max(2, row.tokens // 8)
        for short_row, row in zip(short.rows, whole.rows, strict=True)
    )
    assert short.single_tokens == whole.single_tokens // 8


@pytest.mark.parametrize("shorter", [1, 1000])
def test_a_single_stream_has_a_token_behind_its_first(shorter: int) -> None:
    workload = draw_workload(shorter=shorter)
    assert len(workload.single) == SINGLE_PROMPT
    assert workload.single_tokens >= 2


def test_the_file_holds_what_the_contestants_read(tmp_path: Path) -> None:
    workload = draw_workload(count=2)
    told = json.loads(workload.write(tmp_path / "workload.json").read_text())
    assert told["rows"][1] == {"prompt": workload.rows[1].prompt, "tokens": workload.rows[1].tokens}
    assert told["single"] == workload.single
