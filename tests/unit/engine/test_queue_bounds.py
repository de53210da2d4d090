"""How much may wait before the engine refuses more, and the switches of chunked prefill and statistics."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.gpu_engine.api import EngineError
from headrace.gpu_engine.fan_out import FanOut
from tests.unit.engine.fakes import Bench, expected_tokens, request

# ------------------------------------------------------------------------------ bounds


def refusal(bench: Bench, name: str, prompt: int) -> EngineError:
    error = bench.engine.add(request(name, prompt, 4))
    assert error is not None
    return error


def test_requests_beyond_the_queue_are_refused_with_the_numbers_until_there_is_room() -> None:
    bench = Bench(max_batch_size=2, max_queue_size=1)
    for number in range(3):
        bench.add(request(f"r{number}", 4, 4))
    error = refusal(bench, "late", 4)
    assert error.code == "rate_limit_exceeded"
    assert "holds 3 requests" in error.message
    assert "max_queue_size" in error.message
    bench.run()
    bench.add(request("late", 4, 4))
    bench.run()


def test_without_a_queue_only_what_can_run_is_accepted() -> None:
    bench = Bench(max_batch_size=2, max_queue_size=0)
    bench.add(request("a", 4, 4))
    bench.add(request("b", 4, 4))
    assert refusal(bench, "c", 4).code == "rate_limit_exceeded"
    bench.run()


def test_tokens_beyond_the_queue_are_refused_with_the_numbers() -> None:
    bench = Bench(max_batch_size=1, max_queue_tokens=20)
    bench.add(request("running", 30, 9))
    bench.step()
    bench.add(request("first", 12, 4))
    error = refusal(bench, "second", 9)
    assert "have 12 tokens, and this one 9" in error.message
    assert "max_queue_tokens, 20" in error.message
    bench.add(request("third", 8, 4))
    bench.run()


def test_an_idle_engine_takes_a_prompt_that_is_longer_than_its_queue() -> None:
    bench = Bench(max_queue_tokens=20)
    bench.add(request("long", 30, 2))
    bench.run()


def test_what_can_run_does_not_count_as_waiting_though_it_came_in_the_same_moment() -> None:
    bench = Bench(max_batch_size=3, max_queue_tokens=20)
    for number in range(4):
        bench.add(request(f"r{number}", 12, 4))
    error = refusal(bench, "late", 9)
    assert "have 12 tokens, and this one 9" in error.message
    bench.run()


@pytest.mark.parametrize("bound", [{"max_queue_size": 0}, {"max_queue_tokens": 0}])
def test_answers_that_were_interrupted_are_not_refused_after_all(bound: dict[str, Any]) -> None:
    bench = Bench(max_batch_size=1, **bound)
    requests = [request(f"r{number}", 12, 4, output_ids=[1, 2]) for number in range(3)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert all(len(answers[one.id].token_ids) == 2 for one in requests)


@pytest.mark.parametrize("bound", [{"max_queue_size": 0}, {"max_queue_tokens": 0}])
def test_the_other_answers_to_a_prompt_are_not_refused_when_the_first_was_accepted(
    bound: dict[str, Any],
) -> None:
    bench = Bench(max_batch_size=2, **bound)
    one = request("r", 5, 4)
    engine = FanOut(bench.engine)
    assert engine.add(msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, n=4))) is None
    ends: dict[int, str | None] = {}
    while engine.has_work:
        ends |= {output.index: output.finish_reason for output in engine.step() if output.is_last}
    assert ends == dict.fromkeys(range(4), "length")


# ------------------------------------------------------------------------------ chunked prefill


def test_with_chunking_off_a_prompt_is_computed_in_one_step_however_long() -> None:
    bench = Bench(max_batch_tokens=16, enable_chunked_prefill=False)
    requests = [request("a", 40, 3), request("b", 10, 3), request("c", 10, 3)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    prompts = [
        (chunk.request_id, len(chunk.token_ids))
        for p in bench.runner.plans
        for chunk in p.chunks
        if not chunk.start
    ]
    assert prompts == [("a", 40), ("b", 10), ("c", 10)]
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


@pytest.mark.parametrize("prompt", [14, 15, 16, 17])
def test_with_chunking_off_no_prompt_waits_for_the_end_of_answers_that_leave_it_too_little(
    prompt: int,
) -> None:
    bench = Bench(max_batch_tokens=16, enable_chunked_prefill=False)
    bench.add(request("a", 3, 100))
    bench.add(request("b", 3, 100))
    bench.step()
    bench.add(request("late", prompt, 3))
    assert "late" in {output.id for output in bench.step()}
    bench.run()


def test_with_chunking_on_no_step_exceeds_the_budget() -> None:
    bench = Bench(max_batch_tokens=16)
    bench.add(request("a", 40, 3))
    bench.run()
    assert max(plan.num_tokens for plan in bench.runner.plans) == 16


# ------------------------------------------------------------------------------ statistics


def test_the_statistics_tell_what_is_held_and_what_was_done() -> None:
    bench = Bench(num_blocks=20, max_batch_size=1)
    shared = list(range(12))
    bench.add(request("first", [*shared, 1], 3))
    bench.add(request("second", [*shared, 2], 3))
    bench.step()
    now = bench.engine.stats
    assert (now.running, now.waiting, now.used_blocks, now.free_blocks) == (1, 1, 4, 15)
    assert (now.query_tokens, now.hit_tokens) == (13, 0)
    bench.run()
    bench.add(request("third", list(range(20, 31)) * 6, 2))
    bench.run()
    then = bench.engine.stats
    assert (then.running, then.waiting, then.used_blocks, then.free_blocks) == (0, 0, 0, 19)
    assert (then.query_tokens, then.hit_tokens) == (13 + 13 + 66, 12)
    assert then.cache_evictions > 0
    assert (then.preemptions, then.swaps_out, then.budget_shrinks, then.step_budget) == (0, 0, 0, 16)


def test_an_engine_around_the_engine_tells_the_same() -> None:
    bench = Bench()
    bench.add(request("r", 4, 2))
    bench.step()
    assert FanOut(bench.engine).stats == bench.engine.stats
    bench.run()
