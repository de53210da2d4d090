"""Memory runs out in a step: smaller steps, the same tokens, and back to the old size in time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.memory.errors import is_out_of_memory
from headrace.gpu_engine.out_of_memory import HOPELESS
from headrace.gpu_engine.sampling.head import SamplingHead
from headrace.gpu_engine.scheduling.budget import GOOD_STEPS, StepBudget
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from tests.unit.engine.fakes import Bench, HashRunner, expected_tokens, request
from tests.unit.sampling.logit_runner import LogitRunner


class TightRunner(HashRunner):
    """Has memory for steps of some size only (`fits`); others fail with some of their KV written."""

    fits: Callable[[StepPlan], bool] = staticmethod(lambda plan: True)
    error: Exception = MemoryError()
    failures = 0

    def launch(self, plan: StepPlan) -> StepResult:
        if self.fits(plan):
            return super().launch(plan)
        self.failures += 1
        self._move(plan)
        for chunk in plan.chunks[: len(plan.chunks) // 2]:
            self._store(chunk)
        raise self.error


def tight_bench(fits: Callable[[StepPlan], bool], **config: Any) -> tuple[Bench, TightRunner]:
    bench = Bench(runner=TightRunner, **config)
    assert isinstance(bench.runner, TightRunner)
    bench.runner.fits = fits
    return bench, bench.runner


def up_to(num_tokens: int) -> Callable[[StepPlan], bool]:
    return lambda plan: plan.num_tokens <= num_tokens


def test_a_step_that_runs_out_is_taken_again_with_half_of_its_tokens() -> None:
    bench, runner = tight_bench(up_to(4), max_batch_tokens=64)
    one = request("r", 16, 4)
    bench.add(one)
    bench.step()
    assert runner.failures == 2, "16, 8"
    assert [plan.num_tokens for plan in runner.plans] == [4]
    assert bench.engine.stats.step_budget == 4
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)
    assert runner.failures == 2


def test_where_there_are_more_requests_than_tokens_some_give_way() -> None:
    bench, _ = tight_bench(lambda plan: len(plan.chunks) <= 2, max_batch_tokens=64)
    requests = [request(f"r{number}", 5, 9, priority=number % 3) for number in range(8)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert bench.engine.preemptions > 0
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


def test_the_budget_creeps_back_after_good_steps() -> None:
    bench, runner = tight_bench(lambda plan: True, max_batch_tokens=64)
    bench.add(request("r", 2, 200))
    bench.step()
    runner.fits = lambda plan: runner.failures > 0
    bench.add(request("long", 60, 1))
    bench.step()
    assert bench.engine.stats.step_budget == 30
    budgets = [bench.engine.stats.step_budget for _ in range(8 * GOOD_STEPS) if bench.step()]
    assert budgets[-1] == 64
    assert budgets == sorted(budgets)
    assert len(set(budgets)) > 3, "in several steps"
    bench.engine.abort("r")


def test_a_single_token_that_cannot_be_computed_fails_its_request_alone() -> None:
    bench, _ = tight_bench(lambda plan: all(chunk.request_id != "bad" for chunk in plan.chunks))
    others = [request(f"r{number}", 6, 5) for number in range(3)]
    for one in [others[0], request("bad", 9, 5), *others[1:]]:
        bench.add(one)
    answers = bench.run()
    bad = answers["bad"].last
    assert bad is not None
    assert bad.error is not None
    assert (bad.error.code, bad.error.message) == ("internal_error", HOPELESS)
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in others)
    assert bench.engine.stats.step_budget < 16
    bench.add(request("next", 4, 3))
    assert bench.run()["next"].token_ids == expected_tokens(request("next", 4, 3), 1_000)


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_prompts_are_cut_though_chunking_is_off_and_the_budget_is_as_small_as_can_be(budget: int) -> None:
    bench, runner = tight_bench(up_to(2), max_batch_tokens=budget, enable_chunked_prefill=False)
    requests = [request(f"r{number}", 3 + number, 3) for number in range(3)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert runner.failures > 0
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


class ShortAtTheEnd(LogitRunner):
    """Memory runs out once, in number `fails_at` of the times when it makes logits of hidden states."""

    fails_at = 0
    calls = 0

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.head = SamplingHead(self._logits_of)

    def _logits_of(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fails_at:
            raise MemoryError
        return hidden


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_no_prompts_log_probabilities_are_lost_where_memory_runs_out_behind_them(fails_at: int) -> None:
    bench = Bench(runner=ShortAtTheEnd, max_batch_tokens=64)
    assert isinstance(bench.runner, ShortAtTheEnd)
    bench.runner.fails_at = fails_at
    for name in ("a", "b"):
        one = request(name, 6, 3)
        asked = msgspec.structs.replace(one.params, prompt_logprobs=1)
        bench.add(msgspec.structs.replace(one, params=asked))
    answers = bench.run()
    assert bench.engine.stats.budget_shrinks == 1
    assert [len(answers[name].prompt_logprobs) for name in ("a", "b")] == [5, 5]


def test_prompts_are_cut_for_want_of_memory_though_chunking_is_off() -> None:
    bench, _ = tight_bench(up_to(5), max_batch_tokens=64, enable_chunked_prefill=False)
    one = request("r", 30, 4)
    bench.add(one)
    assert bench.run()["r"].token_ids == expected_tokens(one, 1_000)


def test_blocks_that_were_to_be_copied_are_copied_although_the_step_fails() -> None:
    lucky = Random(3)
    bench, _ = tight_bench(
        lambda plan: plan.num_tokens == 1 or not (plan.copies_out or plan.copies_in) or lucky.random() < 0.3,
        preempt_hook=lambda step, running: running,
        prefix_caching=False,
        num_host_slots=40,
    )
    requests = [request(f"r{number}", 7, 6) for number in range(4)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    assert bench.engine.stats.swaps_in > 0
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


def test_any_other_error_is_the_engines_end() -> None:
    bench, runner = tight_bench(lambda plan: False)
    runner.error = RuntimeError("expected all tensors to be on the same device")
    bench.add(request("r", 4, 4))
    with pytest.raises(RuntimeError, match="same device"):
        bench.engine.step()


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
            ),
            True,
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_torch_says_when_memory_runs_out_is_understood(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


@settings(max_examples=60, deadline=None)
@given(
    budget=st.integers(1, 40),
    luck=st.sampled_from([0.3, 0.7, 0.95]),
    limit=st.integers(1, 40),
    host_slots=st.sampled_from([0, 30]),
    seed=st.integers(0, 1 << 32),
)
def test_no_token_is_lost_or_changed_whenever_memory_runs_out(
    budget: int, luck: float, limit: int, host_slots: int, seed: int
) -> None:
    random = Random(seed)
    bench, _ = tight_bench(
        lambda plan: plan.num_tokens <= 1 or (plan.num_tokens <= limit and random.random() < luck),
        num_blocks=30,
        max_batch_tokens=budget,
        num_host_slots=host_slots,
    )
    requests = [request(f"r{number}", 3 + 4 * number, 7, priority=number % 4) for number in range(6)]
    for one in requests:
        bench.add(one)
        bench.step()
    answers = bench.run(4_000)
    assert all(answers[one.id].token_ids == expected_tokens(one, 1_000) for one in requests)


@given(st.integers(1, 600), st.lists(st.tuples(st.booleans(), st.integers(1, 600)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_the_budget_stays_between_one_token_and_its_limit(limit: int, steps: list[tuple[bool, int]]) -> None:
    budget = StepBudget(limit)
    for is_good, tokens in steps:
        before, tokens = budget.tokens, min(tokens, budget.tokens)
        if is_good:
            budget.note_success()
            assert before <= budget.tokens <= limit
        else:
            assert budget.shrink(tokens) == (tokens > 1)
            assert 1 <= budget.tokens <= max(1, tokens // 2) or tokens == 1
