"""Who joins when: memory is not overcommitted by much, nobody is passed over for ever."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.forecast import Forecast, OutputEstimate, peak_blocks
from headrace.gpu_engine.scheduling.joining import Gaps
from headrace.gpu_engine.scheduling.preemption import MAX_EVICTIONS
from headrace.gpu_engine.scheduling.request import Request, Status
from headrace.gpu_engine.scheduling.turn import MAX_OVERTAKES, Turn
from headrace.gpu_engine.scheduling.waiting import WaitingQueue
from tests.unit.engine.fakes import Bench, request


def waiting(name: str, priority: int = 1, arrival: int = 0) -> Request:
    return Request(
        id=name,
        token_ids=[1],
        num_prompt_tokens=1,
        max_output_tokens=1_000,
        params=SamplingParams(),
        chain=KVMemory(2, 4).chain(),
        turn=Turn(priority, arrival=arrival),
    )


# ------------------------------------------------------------------------------ the expected peak


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6))
@settings(max_examples=200, deadline=None)
def test_the_peak_is_that_of_a_step_by_step_simulation(requests: list[tuple[int, int]]) -> None:
    """All grow by one block at a time and give everything back once grown."""
    simulated = max(sum(held + time for growth, held in requests if growth >= time) for time in range(11))
    assert peak_blocks(requests) == simulated


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_a_step_keeps_of_its_running_requests_is_what_it_would_find_out_anew(seed: int) -> None:
    """Requests of all lanes join one after another, each after some of them have asked."""
    random = Random(seed)
    estimate = OutputEstimate(random.choice([2.0, 40.0]))
    memory = KVMemory(400, 4)
    running: list[Request] = []
    kept, gaps = Forecast(memory, estimate), Gaps(running)
    kept.look(running)
    for number in range(12):
        joiner = waiting(f"r{number}", random.randint(0, 3), number)
        joiner.token_ids += [1] * random.randint(0, 30)
        anew = Forecast(memory, estimate)
        anew.look(running)
        if random.random() < 0.7:
            assert kept.peak_with(joiner, 5) == anew.peak_with(joiner, 5)
            assert gaps.ahead_of(joiner) == Gaps(running).ahead_of(joiner)
        joiner.start(memory.acquire([], joiner.num_tokens), 0, 0)
        joiner.num_computed_tokens = random.randrange(joiner.num_tokens)
        joiner.turn.stay_tokens = random.randint(0, 1)
        running.append(joiner)
        kept.joined(joiner)
        gaps.joined(joiner)


def test_no_requests_have_no_peak() -> None:
    assert peak_blocks([]) == 0


def test_a_generous_max_tokens_does_not_serialise_the_batch() -> None:
    bench = Bench(num_blocks=1_001, block_size=4, max_batch_size=8, max_batch_tokens=64)
    for number in range(8):
        bench.add(request(f"r{number}", 4, None))
    bench.step()
    assert bench.engine.num_running == 8


def test_a_small_max_tokens_counts_for_what_it_is() -> None:
    bench = Bench(num_blocks=17, block_size=4, max_batch_size=8, max_batch_tokens=64)
    for number in range(8):
        bench.add(request(f"r{number}", 4, 4))
    bench.step()
    assert bench.engine.num_running == 8
    bench.run()
    assert bench.engine.preemptions == 0


def test_the_estimate_learns_how_long_outputs_are_and_that_it_was_too_low() -> None:
    estimate = OutputEstimate()
    for _ in range(200):
        estimate.observe(10)
    assert estimate.remaining(waiting("r")) == pytest.approx(11, abs=1)
    estimate.raise_after_preemption()
    assert estimate.remaining(waiting("r")) > 11


def test_what_was_evicted_often_joins_with_its_whole_output_reserved() -> None:
    estimate, one = OutputEstimate(), waiting("r")
    assert estimate.remaining(one) < 1_000
    one.evictions = MAX_EVICTIONS
    assert estimate.remaining(one) == 1_000


def test_blocks_inherited_from_a_finished_request_count_for_the_one_that_holds_them() -> None:
    bench = Bench(num_blocks=21, block_size=4, max_batch_tokens=64)
    shared = list(range(20)) * 2
    bench.add(request("first", [*shared, 1], 1))
    bench.run()
    bench.add(request("heir", [*shared, 2], 8))
    bench.step()
    bench.add(request("growing", 20, 24))
    bench.step()
    assert (bench.engine.num_running, bench.engine.num_waiting) == (1, 1)
    bench.run()
    assert bench.engine.preemptions == 0


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_without_a_look_ahead_more_join_and_some_lose_their_place(looks_ahead: bool) -> None:
    bench = Bench(
        num_blocks=17, block_size=4, max_batch_size=8, max_batch_tokens=64, enable_peak_admission=looks_ahead
    )
    for number in range(8):
        bench.add(request(f"r{number}", 4, 20))
    bench.step()
    assert bench.engine.num_running == (2 if looks_ahead else 8)
    bench.run()
    assert bool(bench.engine.preemptions) is not looks_ahead
    assert all(len(answer.token_ids) == 20 for answer in bench.answers.values())


def test_the_watermark_stays_free_unless_nothing_runs() -> None:
    bench = Bench(num_blocks=11, block_size=4, watermark=0.5)
    bench.add(request("large", 24, 2))
    bench.add(request("small", 4, 2))
    bench.step()
    bench.step()
    assert (bench.engine.num_running, bench.engine.num_waiting) == (1, 1)
    assert set(bench.run()) == {"large", "small"}


# ------------------------------------------------------------------------------ order and its bound


def test_the_lanes_go_in_order_and_within_a_lane_first_come_is_first_served() -> None:
    queue: WaitingQueue[Request] = WaitingQueue()
    for arrival, (name, priority) in enumerate([("b1", 2), ("a1", 0), ("b2", 2), ("a2", 0)]):
        queue.push(waiting(name, priority, arrival))
    assert [one.id for one in queue.candidates(9)] == ["a1", "a2", "b1", "b2"]
    assert [one.id for one in queue.candidates(3)] == ["a1", "a2", "b1"]


def test_a_preempted_request_comes_back_to_its_place() -> None:
    queue: WaitingQueue[Request] = WaitingQueue()
    early, late = waiting("early", arrival=1), waiting("late", arrival=2)
    queue.push(late)
    queue.push(early)
    assert queue.candidates(2) == [early, late]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_no_head_of_a_lane_is_overtaken_more_often_than_the_bound(seed: int) -> None:
    """Whoever picks, as long as what is due goes first."""
    random = Random(seed)
    queue: WaitingQueue[Request] = WaitingQueue()
    for arrival in range(300):
        queue.push(waiting(str(arrival), random.choice([0, 0, 0, 1, 2, 3]), arrival))
        candidates = queue.candidates(8)
        due = queue.due()
        if due is not None:
            assert candidates[0] is due
        one = due or random.choice(candidates)
        queue.remove(one)
        queue.overtake(one.turn.arrival, 0)
        queue.check_invariants()
        assert all(other.turn.overtaken <= MAX_OVERTAKES for other in queue)


def test_a_head_that_does_not_fit_neither_blocks_the_others_nor_waits_for_ever() -> None:
    bench = Bench(num_blocks=21, block_size=4, max_batch_size=8, max_batch_tokens=64)
    bench.add(request("running", 20, 20))
    bench.step()
    bench.add(request("giant", 76, 2))
    joined_before = []
    for number in range(60):
        bench.add(request(f"small{number}", 4, 2))
    while bench.answers["giant"].last is None:
        bench.step()
        joined_before = [
            name for name, answer in bench.answers.items() if name.startswith("small") and answer.token_ids
        ]
    assert 0 < len(joined_before) <= MAX_OVERTAKES
    bench.run()


def test_a_low_lane_under_constant_load_of_a_high_one_is_served_within_the_bound() -> None:
    bench = Bench(max_batch_size=1)
    bench.add(request("background", 4, 2, priority=3))
    for number in range(100):
        bench.add(request(f"i{number}", 4, 1, priority=0))
        bench.step()
        if bench.answers["background"].last is not None:
            break
    assert number <= MAX_OVERTAKES + 4
    served = [name for name, answer in bench.answers.items() if name[0] == "i" and answer.last]
    assert len(served) >= MAX_OVERTAKES


def test_interactive_work_preempts_batch_work_for_a_slot() -> None:
    bench = Bench(max_batch_size=2)
    bench.add(request("b1", 8, 20, priority=2))
    bench.add(request("b2", 4, 20, priority=2))
    bench.step()
    bench.step()
    bench.add(request("user", 4, 20, priority=0))
    assert "user" in [output.id for output in bench.step()]
    assert bench.engine.preemptions == 1
    bench.run()


def test_interactive_work_preempts_batch_work_for_memory_if_that_is_enough() -> None:
    bench = Bench(num_blocks=11, block_size=4, max_batch_tokens=64)
    bench.add(request("batch", 32, 6, priority=2))
    bench.step()
    bench.add(request("user", 12, 4, priority=0))
    assert "user" in [output.id for output in bench.step()]
    assert bench.engine.preemptions == 1
    bench.run()


def test_batch_work_preempts_nobody_to_join() -> None:
    bench = Bench(max_batch_size=1)
    bench.add(request("user", 4, 10, priority=0))
    bench.step()
    bench.add(request("batch", 4, 2, priority=2))
    bench.add(request("other user", 4, 2, priority=0))
    bench.run()
    assert bench.engine.preemptions == 0


def test_a_waiting_request_is_not_let_in_before_it_can_get_tokens() -> None:
    bench = Bench(max_batch_tokens=8)
    bench.add(request("long", 40, 2))
    bench.add(request("next", 4, 2))
    bench.step()
    assert (bench.engine.num_running, bench.engine.num_waiting) == (1, 1)
    assert waiting("r").status is Status.WAITING
