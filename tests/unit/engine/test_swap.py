"""Preempted requests whose blocks go to the host and come back: the same tokens, less computed twice."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.swapping import SwapChoice
from tests.unit.engine.fakes import Bench, expected_tokens, request


def every_third(step: int, running: Sequence[str]) -> Sequence[str]:
    return running if step % 3 == 0 else ()


def test_what_went_to_the_host_does_not_overwrite_more_that_another_answer_has_by_now() -> None:
    """The block that is not full is known twice: 1 token on the host, 2 in the first answer's block."""
    bench = Bench(block_size=4, max_batch_tokens=5, max_batch_size=2, num_host_slots=32)
    swap = bench.engine._scheduler.swap
    first = request("first", 11, 12, priority=2)
    second = msgspec.structs.replace(first, id="second", prompt_of="first")
    bench.add(first)
    while not bench.answers["first"].token_ids:
        bench.step()
    swap._block_copy_s = 1.0  # the first one is computed anew, beside the prompt of the second
    for one in (second, request("user 1", 2, 1, priority=0), request("user 2", 2, 1, priority=0)):
        bench.add(one)
    bench.step()
    swap._block_copy_s = 0.0
    bench.step()
    bench.add(request("user 3", 2, 1, priority=0))
    bench.step()
    assert bench.engine.stats.host_blocks == 3, "the second one is on the host with 9 of its 11 tokens"
    answers = bench.run()
    assert bench.engine.stats.swaps_in == 1
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in (first, second))


def computed(bench: Bench) -> int:
    return sum(plan.num_tokens for plan in bench.runner.plans)


def test_what_went_to_the_host_is_not_computed_again() -> None:
    bench = Bench(preempt_hook=every_third, prefix_caching=False, num_host_slots=32)
    one = request("r", 9, 8)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)
    stats = bench.engine.stats
    assert stats.swaps_out == stats.swaps_in == stats.preemptions > 0
    assert computed(bench) == 9 + 7


def test_without_room_on_the_host_it_is_computed_again() -> None:
    bench = Bench(preempt_hook=every_third, prefix_caching=False, num_host_slots=2)
    one = request("r", 9, 8)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)
    assert bench.engine.stats.swaps_out == 0
    assert computed(bench) > 9 + 7


def test_blocks_that_the_prefix_cache_still_knows_are_not_copied_back() -> None:
    bench = Bench(preempt_hook=every_third, num_host_slots=32)
    one = request("r", 9, 8)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)
    copied = [plan.copies_in for plan in bench.runner.plans if plan.copies_in]
    assert len(copied) == bench.engine.stats.swaps_in > 0
    assert all(len(pairs) == 1 for pairs in copied), "only the block that is not full is unknown"


def test_a_request_that_ends_while_it_is_on_the_host_leaves_nothing_there() -> None:
    bench = Bench(max_batch_size=1, num_host_slots=32)
    bench.add(request("batch", 9, 20, priority=2))
    bench.step()
    bench.step()
    bench.add(request("user", 4, 20, priority=0))
    bench.step()
    assert bench.engine.stats.host_blocks == 3
    bench.engine.abort("batch")
    bench.engine.check_invariants()
    assert bench.engine.stats.host_blocks == 0
    bench.run()


def test_a_prompt_swapped_out_half_way_goes_on_where_it_was() -> None:
    bench = Bench(max_batch_size=1, max_batch_tokens=8, prefix_caching=False, num_host_slots=32)
    one = request("batch", 30, 4, priority=2)
    bench.add(one)
    bench.step()
    bench.step()
    bench.add(request("user", 4, 1, priority=0))
    assert bench.run()["batch"].token_ids == expected_tokens(one, 1_000)
    assert (bench.engine.stats.swaps_in, computed(bench)) == (1, 30 + 3 + 4)


def choice(token_s: float, block_copy_s: float) -> list[int]:
    """Host slots for a victim with 10 computed tokens in blocks of 4."""
    memory = KVMemory(9, 4, num_host_slots=8)
    chosen = SwapChoice(memory, block_copy_s)
    chosen.observe(100, 100 * token_s)
    bench = Bench()
    bench.add(request("r", 10, 4))
    victim = bench.engine._scheduler._roster.get("r")
    assert victim is not None
    victim.start(memory.acquire([], 11), 0, 0)
    victim.num_computed_tokens = 10
    return chosen.keep(victim)


def test_copying_is_chosen_where_it_costs_less_than_computing() -> None:
    assert len(choice(token_s=1e-3, block_copy_s=1e-3)) == 3, "10 ms of computing, 6 ms of copying both ways"
    assert choice(token_s=1e-3, block_copy_s=2e-3) == []


def test_the_pace_of_long_steps_counts_for_more_than_that_of_short_ones() -> None:
    chosen = SwapChoice(KVMemory(9, 4), 0.0)
    for _ in range(20):
        chosen.observe(4, 4 * 10e-3)
    chosen.observe(2_000, 2_000 * 1e-3)
    assert chosen.token_s == pytest.approx(2e-3, rel=0.1)


@settings(max_examples=80, deadline=None)
@given(
    blocks=st.integers(8, 30),
    host_slots=st.integers(0, 20),
    budget=st.integers(1, 24),
    caching=st.booleans(),
    policy=st.sampled_from(["continuous", "static"]),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 1 << 32),
)
def test_no_output_changes_however_often_blocks_travel(
    blocks: int, host_slots: int, budget: int, caching: bool, policy: str, share: float, seed: int
) -> None:
    random = Random(seed)
    bench = Bench(
        num_blocks=blocks,
        block_size=3,
        max_batch_tokens=budget,
        prefix_caching=caching,
        expected_output=1,
        num_host_slots=host_slots,
        batching_policy=policy,
        preempt_hook=lambda step, running: [name for name in running if random.random() < share],
    )
    shared = list(range(random.randint(1, 7)))
    requests = [
        request(f"r{number}", [*shared, number], random.randint(1, 12), priority=random.randint(0, 3))
        for number in range(6)
    ]
    for one in requests:
        bench.add(one)
        bench.step()
        if random.random() < 0.05:
            bench.engine.abort(one.id)
    answers = bench.run()
    for one in requests:
        last = answers[one.id].last
        if last is not None and last.finish_reason != "abort":
            total = bench.engine.info.max_total_tokens
            assert answers[one.id].token_ids == expected_tokens(one, total)
    assert bench.engine.stats.host_blocks == 0
