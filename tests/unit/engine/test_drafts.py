"""Drafts in the plan of a step, and what of them stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.gpu_engine.api import EngineRequest, EngineStats, Grammar, SamplingParams
from headrace.gpu_engine.fan_out import FanOut
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.request import Request, Status
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from headrace.gpu_engine.speculation.acceptance import accept
from headrace.gpu_engine.speculation.drafter import Drafter
from headrace.gpu_engine.speculation.pace import AdaptivePace, Steady
from headrace.gpu_engine.trace import read_trace
from tests.unit.engine.fakes import (
    EOS,
    VOCAB,
    Bench,
    HashRunner,
    Model,
    RepeatingRunner,
    expected_tokens,
    request,
)
from tests.unit.engine.test_scheduler import Desk, sizes
from tests.unit.sampling.logit_runner import LogitRunner, Logits, logits_after

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.5, top_p=0.95, seed=5, max_tokens=30, ignore_eos=True)
ALWAYS: dict[str, Any] = {"speculative_method": "ngram", "adaptive_speculation": False}


@dataclass(frozen=True)
class Guess:
    """A proposer that always has these tokens."""

    tokens: Sequence[int]

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        return [*self.tokens[:count]]


def drafted(one: Request, *tokens: int) -> Request:
    one.drafter = Drafter(Guess(tokens), Steady(len(tokens)))
    return one


def answer(desk: Desk, plan: StepPlan, token: int = 7) -> None:
    """Every row brings `token`."""
    runs = {
        chunk.request_id: accept(chunk.draft, [token] * (1 + chunk.num_draft))
        for chunk in plan.chunks
        if chunk.samples
    }
    desk.scheduler.apply(plan, StepResult(plan.step, runs))
    desk.scheduler.check_invariants()


# ------------------------------------------------------------------------------ the plan


def test_a_draft_stands_behind_the_known_token_and_its_tokens_are_sampled_too() -> None:
    desk = Desk()
    drafted(desk.add("r", 4), 7, 7, 8)
    desk.step()
    [chunk] = desk.scheduler.schedule().chunks
    assert (chunk.start, [*chunk.token_ids], [*chunk.draft], chunk.position) == (
        4,
        [7, 7, 7, 8],
        [7, 7, 8],
        5,
    )
    assert len(chunk.block_table) == 2
    assert chunk.samples


def test_accepted_tokens_and_the_one_behind_them_come_in_one_step() -> None:
    desk = Desk()
    one = drafted(desk.add("r", 4), 7, 7, 8)
    desk.step()
    answer(desk, desk.scheduler.schedule())
    assert one.token_ids[4:] == [7, 7, 7, 7]
    assert (one.num_computed_tokens, one.gap) == (7, 1)
    assert (desk.scheduler.drafts.proposed, desk.scheduler.drafts.accepted) == (3, 2)


def test_drafts_get_what_decodes_and_prompts_leave_of_the_budget() -> None:
    desk = Desk(max_batch_tokens=9)
    for name in "ab":
        drafted(desk.add(name, 2), *[7] * 4)
    desk.step()
    desk.add("prompt", 4)
    assert sizes(desk.step()) == {"a": 4, "b": 1, "prompt": 4}
    desk.add("long", 40)
    assert sizes(desk.step()) == {"a": 1, "b": 1, "prompt": 1, "long": 6}


def test_chunks_of_a_single_token_come_before_those_with_a_draft() -> None:
    desk = Desk()
    drafted(desk.add("guessed", 3), 7)
    desk.add("plain", 3)
    desk.step()
    assert [*sizes(desk.step())] == ["plain", "guessed"]


def test_nothing_is_drafted_beyond_the_last_token_that_was_asked_for() -> None:
    desk = Desk()
    one = drafted(desk.add("r", 4, max_tokens=4), *[7] * 8)
    desk.step()
    plan = desk.scheduler.schedule()
    assert sizes(plan) == {"r": 3}
    answer(desk, plan)
    assert (one.status, one.finish_reason, one.num_output_tokens) == (Status.FINISHED, "length", 4)


def test_a_request_that_computes_its_tokens_anew_drafts_only_when_it_is_done() -> None:
    desk = Desk()
    drafted(desk.add("r", 4, max_tokens=20), 7, 7)
    for expected in (4, 3, 3):
        assert sizes(desk.step()) == {"r": expected}
    [one] = desk.scheduler._roster.running
    desk.scheduler._roster.preempt(one)
    assert desk.step().num_draft_tokens == 0
    assert desk.step().num_draft_tokens == 2


# ------------------------------------------------------------------------------ whether it pays


class Noted:
    """A price that notes what it is told and asked."""

    def __init__(self, price: float) -> None:
        self.price = price
        self.told: list[tuple[int, float]] = []
        self.asked: list[int] = []

    def observe(self, rows: int, seconds: float) -> None:
        self.told.append((rows, seconds))

    def of(self, rows: int) -> float:
        self.asked.append(rows)
        return self.price


def priced_desk(price: Noted) -> Desk:
    """`right` and `wrong` decode, whose drafts have been just that."""
    desk = Desk()
    desk.scheduler.drafts._price = price
    for name, accepted in (("right", 4), ("wrong", 1)):
        one, pace = desk.add(name, 3), AdaptivePace(4)
        for _ in range(9):
            pace.observe(4, accepted)
        one.drafter = Drafter(Guess([7] * 4), pace)
    desk.step()
    return desk


@pytest.mark.parametrize(
    ("price", "expected"), [(0.0, {"wrong": 3, "right": 5}), (0.5, {"wrong": 1, "right": 5})]
)
def test_where_rows_are_dear_only_those_draft_whose_drafts_are_right(
    price: float, expected: dict[str, int]
) -> None:
    desk = priced_desk(Noted(price))
    assert sizes(desk.step()) == expected


def test_the_price_is_asked_for_the_rows_without_drafts_and_learns_from_steps_without_prompts() -> None:
    price = Noted(0.0)
    desk = priced_desk(price)
    desk.add("prompt", 4)
    mixed = desk.scheduler.schedule()
    assert price.asked == [2 + 4]
    desk.scheduler.observe(mixed, 3.0)
    answer(desk, mixed)
    alone = desk.step()
    desk.scheduler.observe(alone, 2.0)
    assert price.told == [(alone.num_tokens, 2.0)]
    assert alone.num_draft_tokens > 0


# ------------------------------------------------------------------------------ blocks


def test_a_draft_takes_free_blocks_and_gives_back_those_it_did_not_need() -> None:
    desk = Desk()
    one = drafted(desk.add("r", 7), *[8] * 6)
    desk.step()
    plan = desk.scheduler.schedule()
    assert len(plan.chunks[0].block_table) == len(one.block_ids) == 4  # 8 known tokens, 6 guessed, 4 a block
    answer(desk, plan)
    assert (one.num_tokens, len(one.block_ids), desk.memory.num_used) == (9, 3, 3)


def test_where_no_block_is_free_a_draft_ends_with_the_block_and_nobody_gives_way() -> None:
    desk = Desk()
    one, other = desk.add("one", 5), desk.add("other", 5)
    desk.step()
    desk.memory.allocate(desk.memory.num_free)  # another's
    drafted(one, *[8] * 3)
    drafted(other, *[8] * 3)
    assert sizes(desk.scheduler.schedule()) == {"one": 3, "other": 3}  # 6 known tokens, 8 in two blocks
    assert desk.scheduler.preemptions == 0


def test_only_computed_tokens_that_were_accepted_are_known_to_the_prefix_cache() -> None:
    desk = Desk()
    one = drafted(desk.add("r", 3, max_tokens=20), 7, 7, 7, 7, 8, 8, 8, 8)
    desk.step()
    answer(desk, desk.scheduler.schedule())
    assert one.token_ids == [0, 1, 2, *[7] * 6]
    known = [*one.token_ids[:8], 8, 8, 8, 8, 8]
    assert len(desk.memory.lookup(desk.memory.chain(), known)) == 2
    assert one.kept_blocks == 2


# ------------------------------------------------------------------------------ steps that come to nothing


def test_an_abort_while_a_draft_is_computed_frees_its_blocks_too() -> None:
    desk = Desk()
    drafted(desk.add("r", 7), *[8] * 6)
    desk.step()
    plan = desk.scheduler.schedule()
    assert desk.scheduler.abort("r") is not None
    assert desk.memory.num_used == 0
    assert desk.scheduler.apply(plan, StepResult(plan.step, {"r": [8]})) == []
    desk.scheduler.check_invariants()


def test_the_blocks_of_a_draft_whose_step_was_lost_are_free_for_the_next_one() -> None:
    desk = Desk(num_blocks=7, expected_output=0)
    guesser = drafted(desk.add("guesser", 3, max_tokens=20), *[8] * 8)
    desk.step()
    desk.add("late", 13, max_tokens=1)
    lost = desk.scheduler.schedule()
    assert lost.num_draft_tokens > 0
    guesser.drafter = None
    again = desk.scheduler.schedule()
    assert again.num_draft_tokens == 0
    assert len(guesser.block_ids) == 1
    answer(desk, again)


def test_where_memory_runs_out_drafts_go_before_anybody_gives_way() -> None:
    budget = StepBudget(100)
    assert budget.shrink(9, num_draft_tokens=5)
    assert (budget.tokens, budget.shrinks, budget.is_shrunken) == (4, 1, True)
    assert budget.shrink(4)
    assert budget.tokens == 2


# ------------------------------------------------------------------------------ how answers end


class Cycle(HashRunner):
    """Says a, b, c, … k, the end token, and again from a."""

    model: Model = staticmethod(lambda context, seed: {10: EOS, EOS: 0}.get(context[-1], context[-1] + 1))


def run_twice(runner: type[HashRunner], *requests: EngineRequest) -> tuple[Bench, Bench]:
    """Without drafts, and with: what they say is the same."""
    benches = Bench(runner=runner), Bench(runner=runner, **ALWAYS)
    for bench in benches:
        for one in requests:
            bench.add(one)
        bench.run()
    without, drafting = benches
    assert said(drafting) == said(without)
    return benches


def said(bench: Bench) -> dict[str, object]:
    """All of each answer that does not depend on how many tokens came at a time."""
    return {
        name: (
            answer.token_ids,
            answer.text,
            answer.logprobs,
            answer.prompt_logprobs,
            answer.last and answer.last.finish_reason,
        )
        for name, answer in bench.answers.items()
    }


@pytest.mark.parametrize("stop", ["d", "gh", "hi", "k"])
def test_a_stop_string_within_an_accepted_run_ends_the_answer_at_its_token(stop: str) -> None:
    prompt = [*range(11), EOS, 0, 1]
    without, drafting = run_twice(Cycle, request("r", prompt, 40, stop=[stop]))
    assert drafting.answers["r"].token_ids[-1] == ord(stop[-1]) - ord("a")
    assert len(drafting.runner.plans) <= len(without.runner.plans)


class CycleLogits(LogitRunner):
    """`Cycle`, sampled as a real runner does."""

    logits_after: Logits = staticmethod(
        lambda context: [20.0 * (token == Cycle.model(context, 0)) for token in range(VOCAB)]
    )


def test_no_log_probability_is_told_of_what_comes_behind_a_stop_string() -> None:
    params = msgspec.structs.replace(GREEDY, stop=("gh",), logprobs=1)
    one = EngineRequest(id="r", prompt_ids=[*range(11), EOS, 0, 1], params=params)
    _, drafting = run_twice(CycleLogits, one)
    assert [score.token for score in drafting.answers["r"].logprobs] == [*range(2, 8)]


def test_an_end_token_within_an_accepted_run_ends_the_answer() -> None:
    _, drafting = run_twice(Cycle, request("r", [*range(11), EOS, *range(5)], 40, ignore_eos=False))
    assert drafting.answers["r"].token_ids == [*range(5, 11), EOS]
    assert len(drafting.runner.plans) < 4


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_is_kept_to_the_token(max_tokens: int) -> None:
    _, drafting = run_twice(Cycle, request("r", [*range(11), EOS, 0, 1], max_tokens))
    assert len(drafting.answers["r"].token_ids) == max_tokens


# ------------------------------------------------------------------------------ what it gains, and for whom


def test_a_text_that_repeats_takes_a_fraction_of_the_steps() -> None:
    requests = [request(f"r{number}", 12, 60) for number in range(4)]
    without, drafting = run_twice(RepeatingRunner, *requests)
    stats = drafting.engine.stats
    assert stats.accepted_tokens > 0.5 * stats.draft_tokens > 0
    assert len(drafting.runner.plans) < 0.6 * len(without.runner.plans)
    assert without.engine.stats.draft_tokens == 0


def test_a_pace_that_follows_the_clock_changes_no_token() -> None:
    bench = Bench(runner=RepeatingRunner, speculative_method="ngram", max_batch_size=4)
    requests = [request(f"r{number}", 12, 60) for number in range(8)]
    for one in requests:
        bench.add(one)
    answers = bench.run()
    for one in requests:
        assert answers[one.id].token_ids == expected_tokens(one, 1_000, RepeatingRunner.model)
    assert bench.engine.stats.draft_tokens > 0


def repeating_logits(context: Sequence[int]) -> list[float]:
    logits = logits_after(context)
    if len(context) > 6:
        logits[context[-6]] += 9.0
    return logits


class RepeatingLogits(LogitRunner):
    """Samples as a real runner does; its likeliest token is mostly one that it said before."""

    logits_after: Logits = staticmethod(repeating_logits)


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_sampled_tokens_and_their_log_probabilities_are_the_same(
    params: SamplingParams, logprobs: int | None, prompt_logprobs: int | None
) -> None:
    asked = msgspec.structs.replace(params, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
    requests = [
        EngineRequest(id="one", prompt_ids=[3, 1, 4, 1, 5, 9, 2, 6], params=asked),
        EngineRequest(id="other", prompt_ids=[2], params=params),
    ]
    _, drafting = run_twice(RepeatingLogits, *requests)
    assert drafting.engine.stats.accepted_tokens > 5
    assert len(drafting.answers["one"].logprobs) == (0 if logprobs is None else 30)


@pytest.mark.parametrize(
    "shaping",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"min_tokens": 3},
        {"bad_words": ("c",)},
        {"grammar": Grammar(kind="regex", source="[a-e]+")},
    ],
    ids=lambda shaping: next(iter(shaping)),
)
def test_requests_whose_rows_are_shaped_by_the_tokens_before_are_not_drafted_for(
    shaping: dict[str, Any],
) -> None:
    params = msgspec.structs.replace(GREEDY, **shaping, ignore_eos=False)
    one = EngineRequest(id="r", prompt_ids=[1, 2, 3, 1, 2, 3], params=params)
    _, drafting = run_twice(RepeatingLogits, one)
    assert drafting.engine.stats.draft_tokens == 0


def test_several_answers_to_one_prompt_are_each_what_they_are_without() -> None:
    answers: list[dict[int, list[int]]] = []
    for settings in (dict[str, Any](), ALWAYS):
        engine = FanOut(Bench(runner=RepeatingLogits, **settings).engine)
        params = msgspec.structs.replace(SEEDED, n=3)
        assert engine.add(EngineRequest(id="r", prompt_ids=[1, 2, 3, 1, 2, 3], params=params)) is None
        said: dict[int, list[int]] = {0: [], 1: [], 2: []}
        while engine.has_work:
            for output in engine.step():
                said[output.index] += output.token_ids
        answers.append(said)
    assert answers[0] == answers[1]
    assert len({tuple(tokens) for tokens in answers[0].values()}) == 3


def stats_of_traced_run(path: Path) -> EngineStats:
    """The trace is closed with the engine."""
    bench = Bench(runner=RepeatingRunner, trace_path=str(path), **ALWAYS)
    bench.add(request("r", 12, 60))
    bench.run()
    return bench.engine.stats


def test_the_trace_tells_of_each_step_how_much_was_drafted_and_right(tmp_path: Path) -> None:
    stats = stats_of_traced_run(tmp_path / "trace")
    steps = read_trace(tmp_path / "trace").steps
    assert sum(step.drafted for step in steps) == stats.draft_tokens > 0
    assert sum(step.accepted for step in steps) == stats.accepted_tokens
    assert all(sum(step.ran.values()) > step.drafted >= step.accepted for step in steps)
