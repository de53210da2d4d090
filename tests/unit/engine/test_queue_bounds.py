"""How much may wait before the engine refuses more, and the switches of chunked prefill and statistics."""

from __future__ import annotations

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
