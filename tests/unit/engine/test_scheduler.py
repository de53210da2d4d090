"""The scheduler's step: what is planned, what is taken, what is dropped."""

from __future__ import annotations

import pytest

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.forecast import OutputEstimate
from headrace.gpu_engine.scheduling.preemption import MAX_EVICTIONS, choose_victims, eagerness_to_yield
from headrace.gpu_engine.scheduling.request import TRANSITIONS, Request, Status
from headrace.gpu_engine.scheduling.scheduler import Scheduler
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from headrace.gpu_engine.scheduling.turn import Turn
from tests.unit.engine.fakes import Bench, expected_tokens, request


class Desk:
    """A scheduler whose results are given by hand: every request that samples gets token 7."""

    def __init__(
        self,
        *,
        num_blocks: int = 32,
        max_batch_size: int = 8,
        max_batch_tokens: int = 16,
        caching: bool = True,
        expected_output: float = 128,
    ) -> None:
        self.memory = KVMemory(num_blocks, 4, enable_prefix_caching=caching)
        self.scheduler = Scheduler(
            self.memory,
            max_batch_size=max_batch_size,
            max_batch_tokens=max_batch_tokens,
            eos_ids=frozenset({31}),
            estimate=OutputEstimate(expected_output),
        )

    def add(self, name: str, prompt: int, max_tokens: int = 8, priority: int = 1) -> Request:
        one = Request(
            id=name,
            token_ids=[*range(prompt)],
            num_prompt_tokens=prompt,
            max_output_tokens=max_tokens,
            params=SamplingParams(),
            chain=self.memory.chain(),
            turn=Turn(priority),
        )
        assert self.scheduler.add(one) is None
        return one

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        self.scheduler.apply(plan, result_of(plan))
        self.scheduler.check_invariants()
        return plan


def result_of(plan: StepPlan, token: int = 7) -> StepResult:
    return StepResult(plan.step, {chunk.request_id: [token] for chunk in plan.chunks if chunk.samples})


def sizes(plan: StepPlan) -> dict[str, int]:
    return {chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks}


# ------------------------------------------------------------------------------ the plan


def test_a_long_prompt_is_cut_to_the_budget_and_only_its_last_chunk_samples() -> None:
    desk = Desk(max_batch_tokens=6)
    desk.add("r", 14)
    chunks = [desk.step().chunks[0] for _ in range(4)]
    assert [(chunk.start, len(chunk.token_ids), chunk.samples) for chunk in chunks] == [
        (0, 6, False),
        (6, 6, False),
        (12, 2, True),
        (14, 1, True),
    ]
    assert list(chunks[2].token_ids) == [12, 13]
    assert [len(chunk.block_table) for chunk in chunks] == [2, 3, 4, 4]


def test_decodes_come_first_and_a_long_prompt_delays_them_by_no_more_than_a_budget() -> None:
    desk = Desk(max_batch_tokens=6)
    desk.add("a", 3)
    desk.add("b", 3)
    desk.step()
    desk.add("long", 40)
    for _ in range(5):
        assert sizes(desk.step()) == {"a": 1, "b": 1, "long": 4}


def test_no_plan_exceeds_the_budget_or_the_batch_size() -> None:
    desk = Desk(max_batch_size=3, max_batch_tokens=5)
    for number in range(9):
        desk.add(f"r{number}", 3 + number)
    while len(desk.scheduler):
        plan = desk.step()
        assert 0 < sum(sizes(plan).values()) <= 5
        assert len(plan.chunks) <= 3


def test_chunks_of_a_single_token_come_first() -> None:
    desk = Desk(max_batch_tokens=6)
    desk.add("a", 5, priority=0)
    desk.add("b", 9)
    assert list(sizes(desk.step()).items()) == [("b", 1), ("a", 5)]
    assert list(sizes(desk.step()).items()) == [("a", 1), ("b", 5)]


def test_no_more_requests_run_than_a_step_has_tokens() -> None:
    desk = Desk(max_batch_size=8, max_batch_tokens=2)
    desk.add("long", 10, priority=2)
    for number in range(5):
        desk.step()
        desk.add(f"user{number}", 3, priority=0)
        assert desk.scheduler.num_running <= 2
    while len(desk.scheduler):
        assert 0 < sum(sizes(desk.step()).values()) <= 2


def test_every_running_request_advances_even_if_the_budget_is_smaller_than_the_batch() -> None:
    desk = Desk(max_batch_size=8, max_batch_tokens=2)
    for number in range(4):
        desk.add(f"r{number}", 1)
    desk.step()
    assert set(sizes(desk.step())) == {"r0", "r1"}
    assert set(sizes(desk.step())) == {"r0", "r1"}


def test_a_higher_lanes_prompt_gets_its_tokens_before_a_long_one_of_a_lower_lane() -> None:
    desk = Desk(max_batch_tokens=8)
    desk.add("long", 60, priority=2)
    desk.step()
    desk.add("user", 6, priority=0)
    assert sizes(desk.step()) == {"user": 6, "long": 2}


def test_a_prompt_half_way_through_is_not_starved_by_prompts_of_a_higher_lane() -> None:
    desk = Desk(num_blocks=200, max_batch_tokens=8, caching=False)
    desk.add("long", 60, priority=2)
    desk.step()
    steps = 0
    while "long" in desk.scheduler and steps < 1_000:
        desk.add(f"user{steps}", 8, max_tokens=1, priority=0)
        desk.step()
        steps += 1
    assert steps < 400


# ------------------------------------------------------------------------------ preemption


def crowded_desk() -> tuple[Desk, list[Request]]:
    """Three requests that were let in together, of whom one must give way in their sixth step."""
    desk = Desk(num_blocks=10, max_batch_tokens=64, expected_output=1)
    prompts = (("urgent", 4, 0), ("most", 12, 1), ("least", 8, 1))
    requests = [desk.add(name, prompt, 20, priority) for name, prompt, priority in prompts]
    for _ in range(5):
        assert len(desk.step().chunks) == 3
    return desk, requests


def test_when_blocks_run_out_the_one_with_least_work_in_the_lowest_lane_gives_way() -> None:
    desk, (urgent, most, least) = crowded_desk()
    desk.step()
    assert [one.status for one in (urgent, most)] == [Status.RUNNING] * 2
    assert least.status is Status.PREEMPTED
    assert (least.evictions, least.block_ids, least.num_computed_tokens) == (1, [], 0)
    assert least.num_output_tokens == 5, "what was generated is kept"


def test_nobody_joins_in_a_step_that_preempted_for_memory() -> None:
    desk, (_, most, _) = crowded_desk()
    desk.add("tiny", 1, max_tokens=1, priority=0)
    most.turn.keeps_place = True  # it was due, and gives way to nobody for a while
    assert set(sizes(desk.step())) == {"urgent", "most"}
    assert any("tiny" in sizes(desk.step()) for _ in range(30))


def test_a_higher_lane_joins_even_then_in_the_place_of_a_lower_one() -> None:
    desk, (_, most, _) = crowded_desk()
    desk.add("user", 1, priority=0)
    assert set(sizes(desk.step())) == {"urgent", "user"}
    assert (most.status, most.evictions) == (Status.PREEMPTED, 0)


def test_one_evicted_often_is_spared_while_others_of_its_lane_can_give_way() -> None:
    desk = Desk()
    never, often = desk.add("never", 4, priority=3), desk.add("often", 4, priority=3)
    often.evictions = MAX_EVICTIONS
    assert max((often, never), key=eagerness_to_yield) is never


def test_no_lane_is_evicted_before_a_lower_one() -> None:
    desk = Desk()
    user, spared = desk.add("user", 4, priority=0), desk.add("spared", 40, priority=3)
    spared.evictions = MAX_EVICTIONS
    assert max((user, spared), key=eagerness_to_yield) is spared


def test_blocks_that_the_newcomer_would_take_itself_are_not_won_by_a_preemption() -> None:
    desk = Desk(num_blocks=7)
    batch, user = desk.add("batch", 20, priority=2), desk.add("user", 24, priority=0)
    desk.scheduler.abort("user")
    batch.block_ids = desk.memory.acquire([], 20)
    shared = batch.block_ids[:4]
    for missing, victims in ((1, [batch]), (2, None)):
        chosen = choose_victims(user, shared, [batch], desk.memory, missing_slots=0, missing_blocks=missing)
        assert chosen == victims


def test_the_last_running_request_is_never_preempted_and_every_step_gets_somewhere() -> None:
    desk, requests = crowded_desk()
    while len(desk.scheduler):
        assert desk.step().chunks
    assert [one.num_output_tokens for one in requests] == [20, 20, 20]


def test_preemptions_are_counted_per_request_and_in_total() -> None:
    desk, requests = crowded_desk()
    while len(desk.scheduler):
        desk.step()
    assert desk.scheduler.preemptions == sum(one.turn.preemptions for one in requests) > 0


def test_a_hook_that_preempts_everything_always_leaves_progress() -> None:
    bench = Bench(max_batch_tokens=2, prefix_caching=False, preempt_hook=lambda step, running: running)
    one = request("r", 9, 5)
    bench.add(one)
    assert bench.run(200)["r"].token_ids == expected_tokens(one, 1_000)


# ------------------------------------------------------------------------------ results


def test_the_result_of_a_request_aborted_in_flight_is_dropped() -> None:
    desk = Desk()
    desk.add("gone", 4)
    desk.add("stays", 4)
    plan = desk.scheduler.schedule()
    assert desk.scheduler.abort("gone") is not None
    outcomes = desk.scheduler.apply(plan, result_of(plan))
    assert [outcome.request_id for outcome in outcomes] == ["stays"]
    desk.scheduler.check_invariants()


def test_the_result_for_an_aborted_request_does_not_reach_a_new_one_of_the_same_id() -> None:
    desk = Desk()
    desk.add("r", 4)
    plan = desk.scheduler.schedule()
    desk.scheduler.abort("r")
    again = desk.add("r", 8)
    assert desk.scheduler.apply(plan, result_of(plan)) == []
    assert (again.num_computed_tokens, again.num_output_tokens) == (0, 0)
    assert sizes(desk.step()) == {"r": 8}


def test_a_step_that_was_lost_is_planned_again_and_its_late_result_dropped() -> None:
    desk = Desk()
    one = desk.add("r", 4)
    desk.step()
    lost = desk.scheduler.schedule()
    again = desk.scheduler.schedule()
    assert sizes(again) == sizes(lost)
    assert desk.scheduler.apply(lost, result_of(lost, token=9)) == []
    desk.scheduler.apply(again, result_of(again, token=8))
    assert one.token_ids[4:] == [7, 8]
    desk.scheduler.check_invariants()


def test_a_request_aborted_half_way_through_its_prompt_leaves_nothing_in_the_cache() -> None:
    desk = Desk(max_batch_tokens=8)
    desk.add("r", 20)
    desk.step()
    desk.step()
    desk.scheduler.abort("r")
    assert desk.memory.lookup(desk.memory.chain(), [*range(20)]) == []


def test_cached_tokens_count_prompt_tokens_found_when_first_let_in() -> None:
    desk = Desk()
    first = desk.add("first", 10, max_tokens=1)
    desk.step()
    second = desk.add("second", 10, max_tokens=1)
    desk.step()
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)


# ------------------------------------------------------------------------------ states


def move(one: Request, status: Status) -> None:
    match status:
        case Status.RUNNING:
            one.start([1], 0, 0)
        case Status.PREEMPTED:
            one.preempt()
        case Status.FINISHED:
            one.finish("abort")
        case Status.WAITING:
            raise AssertionError("nothing → waiting")


@pytest.mark.parametrize("start", Status)
@pytest.mark.parametrize("end", Status)
def test_only_the_transitions_of_the_table_are_possible(start: Status, end: Status) -> None:
    one = Desk().add("r", 4)
    one.status = start
    if end in TRANSITIONS[start]:
        move(one, end)
        assert one.status is end
    else:
        with pytest.raises(AssertionError, match="→"):
            move(one, end)


def test_check_invariants_sees_a_leaked_block() -> None:
    desk = Desk()
    desk.memory.allocate(1)
    with pytest.raises(AssertionError, match="1 blocks are held"):
        desk.scheduler.check_invariants()


def test_check_invariants_sees_a_block_that_two_requests_write() -> None:
    desk = Desk()
    first, second = desk.add("a", 4), desk.add("b", 4)
    desk.step()
    second.block_ids[0] = first.block_ids[0]
    with pytest.raises(AssertionError, match="tables hold it"):
        desk.scheduler.check_invariants()


@pytest.mark.parametrize("is_there", [True, False])
def test_blocks_that_victims_share_are_won_when_all_of_them_give_way(is_there: bool) -> None:
    """`is_there`: the one that computed what they share still runs."""
    bench = Bench(num_blocks=13, block_size=16, max_batch_tokens=256, expected_output=1)
    shared = [token % 31 for token in range(128)]
    if not is_there:
        bench.add(request("ended", [*shared, 9], 1, priority=2))
        bench.run()
    for number in range(2):
        bench.add(request(f"batch{number}", [*shared, number], 14, priority=2))
        bench.step()
    assert bench.engine.stats.free_blocks == 2
    bench.add(request("user", 100, 1, priority=0))
    assert "user" in {output.id for output in bench.step()}, "7 blocks, and the two share 8 of their 10"
    assert bench.engine.preemptions == 2
    bench.run()
