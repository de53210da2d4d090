"""Lanes: who goes first, who gives way, for how long, and that it costs neither side too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import SamplingParams
from headrace.gpu_engine.memory.kv_memory import KVMemory
from headrace.gpu_engine.scheduling.admission import Admission
from headrace.gpu_engine.scheduling.budget import StepBudget
from headrace.gpu_engine.scheduling.forecast import OutputEstimate
from headrace.gpu_engine.scheduling.request import Request, Status
from headrace.gpu_engine.scheduling.scheduler import Scheduler
from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
from headrace.gpu_engine.scheduling.turn import MAX_OVERTAKES, SHORTEST_STAY, Turn
from headrace.gpu_engine.scheduling.waiting import WaitingQueue

AGEING_S = 5.0
USER, BATCH = 0, 2


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Snapshot:
    """What a running request was like before a step."""

    request: Request
    owed: bool
    in_stay: bool
    preemptions: int
    evictions: int

    @classmethod
    def of(cls, one: Request) -> Snapshot:
        turn = one.turn
        owed, in_stay = turn.stay_tokens < turn.owed, turn.stay_tokens < turn.stay
        return cls(one, owed, in_stay, turn.preemptions, one.evictions)

    @property
    def gave_way(self) -> bool:
        """For a higher lane, not for want of memory."""
        evicted = self.request.evictions - self.evictions
        return self.request.turn.preemptions - self.preemptions > evicted


class Bench:
    """A scheduler whose every move is checked against the rules of `turn`. A step takes `step_s`."""

    def __init__(
        self,
        *,
        num_blocks: int = 257,
        max_batch_size: int = 8,
        max_batch_tokens: int = 64,
        step_s: float = 0.05,
        caching: bool = False,
    ) -> None:
        self.clock, self.step_s = Clock(), step_s
        self.random = Random(0)
        self.max_batch_size = max_batch_size
        self.memory = KVMemory(num_blocks, 4, enable_prefix_caching=caching)
        self.scheduler = Scheduler(
            self.memory,
            max_batch_size=max_batch_size,
            max_batch_tokens=max_batch_tokens,
            eos_ids=frozenset(),
            estimate=OutputEstimate(32),
            ageing_s=AGEING_S,
            clock=self.clock,
        )
        self.requests: dict[str, Request] = {}
        self.open: dict[str, Request] = {}

    def add(
        self, name: str, priority: int, prompt: int = 8, output: int = 40, deadline: float = float("inf")
    ) -> Request:
        one = self.requests[name] = self.open[name] = Request(
            id=name,
            token_ids=[len(self.requests) * 1_000 + place for place in range(prompt)],
            num_prompt_tokens=prompt,
            max_output_tokens=output,
            params=SamplingParams(),
            chain=self.memory.chain(),
            turn=Turn(priority, deadline),
        )
        assert self.scheduler.add(one) is None
        return one

    @property
    def unfinished(self) -> list[Request]:
        """Those that have ended are forgotten here."""
        ended = [name for name, one in self.open.items() if one.status is Status.FINISHED]
        for name in ended:
            del self.open[name]
        return list(self.open.values())

    @property
    def running(self) -> list[Request]:
        return [one for one in self.unfinished if one.status is Status.RUNNING]

    @property
    def waiting(self) -> list[Request]:
        return [one for one in self.unfinished if one.status is not Status.RUNNING]

    def step(self) -> StepPlan:
        before = [Snapshot.of(one) for one in self.running]
        ran = {was.request.id for was in before}
        plan = self.scheduler.schedule()
        self._check(before, [one for one in self.running if one.id not in ran])
        self.scheduler.apply(
            plan, StepResult(plan.step, {c.request_id: [7] for c in plan.chunks if c.samples})
        )
        if self.random.random() < 0.1:
            self.scheduler.check_invariants()
        self.clock.now += self.step_s
        return plan

    def _check(self, before: list[Snapshot], joined: list[Request]) -> None:
        for was in [was for was in before if was.gave_way]:
            lane = was.request.turn.priority
            assert any(one.turn.priority < lane for one in joined), "it gave way to nobody of a higher lane"
            assert not was.owed, "it gave way before it had got anywhere"
        for one in self.waiting:
            assert one.turn.overtaken <= MAX_OVERTAKES + self.max_batch_size, "nobody is passed over for ever"

    def until(self, name: str, tokens: int = 1, limit: int = 10_000) -> int:
        """Steps until a request has so many tokens of output."""
        one = self.requests[name]
        for taken in range(limit):
            if one.num_output_tokens >= tokens or one.status is Status.FINISHED:
                return taken
            self.step()
        raise AssertionError(f"{name} is still without its tokens")

    def drain(self, limit: int = 20_000) -> None:
        for _ in range(limit):
            if not len(self.scheduler):
                return
            self.step()
        raise AssertionError("it never ends")


def idle_steps(prompt: int, size: int) -> int:
    """Steps to the first token in an engine that has nothing else to do."""
    idle = Bench(max_batch_size=size)
    idle.add("user", USER, prompt)
    return idle.until("user")


# -------------------------------------------------------------------------------------- order in the line


def one(name: str, priority: int, arrival: int, deadline: float = float("inf")) -> Request:
    chain = KVMemory(2, 4).chain()
    return Request(name, [1], 1, 9, SamplingParams(), chain, Turn(priority, deadline, arrival))


@pytest.fixture
def queue() -> WaitingQueue[Request]:
    return WaitingQueue(AGEING_S)


def test_within_a_lane_the_earliest_deadline_goes_first_and_those_without_go_last(
    queue: WaitingQueue[Request],
) -> None:
    lines = [("b-late", 2, 9.0), ("b-none", 2, float("inf")), ("b-soon", 2, 1.0), ("a-none", 0, float("inf"))]
    for arrival, (name, priority, deadline) in enumerate(lines):
        queue.push(one(name, priority, arrival, deadline))
    assert [each.id for each in queue.candidates(9)] == ["a-none", "b-soon", "b-late", "b-none"]


def test_equal_deadlines_go_as_they_came(queue: WaitingQueue[Request]) -> None:
    for arrival in (3, 1, 2):
        queue.push(one(f"r{arrival}", 1, arrival, 5.0))
    assert [each.id for each in queue.candidates(9)] == ["r1", "r2", "r3"]


def test_one_without_a_deadline_is_not_passed_over_for_ever_by_those_with_one(
    queue: WaitingQueue[Request],
) -> None:
    patient = one("patient", 1, 0)
    queue.push(patient)
    for arrival in range(1, 100):
        urgent = one(f"urgent{arrival}", 1, arrival, deadline=float(arrival))
        queue.push(urgent)
        [chosen, *_] = queue.candidates(1)
        if chosen is patient:
            break
        queue.remove(chosen)
        queue.overtake(arrival, now=0.0)
    assert chosen is patient
    assert arrival == MAX_OVERTAKES + 1


def test_the_oldest_of_a_lane_is_due_once_it_was_overtaken_for_so_long(queue: WaitingQueue[Request]) -> None:
    batch, user = one("batch", BATCH, 0), one("user", USER, 9)
    queue.push(batch)
    queue.age(1_000.0)
    assert queue.due() is None, "nobody has overtaken it"
    queue.overtake(1, now=1_000.0)
    queue.push(user)
    queue.age(1_000.0 + AGEING_S - 0.1)
    assert queue.candidates(1) == [user]
    queue.age(1_000.0 + AGEING_S)
    assert queue.due() is batch
    assert queue.candidates(2) == [batch, user]


def test_one_that_comes_back_ahead_of_one_that_is_due_is_due_in_its_place(
    queue: WaitingQueue[Request],
) -> None:
    late, early = one("late", BATCH, 5), one("early", BATCH, 1)
    queue.push(late)
    queue.overtake(6, now=0.0)
    queue.age(AGEING_S)
    assert queue.due() is late
    queue.push(early)
    assert queue.due() is early


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=40), st.randoms())
def test_the_line_is_that_of_a_plain_sort(lines: list[tuple[int, int]], random: Random) -> None:
    queue: WaitingQueue[Request] = WaitingQueue()
    waiting = [one(str(n), lane, n, float(deadline)) for n, (lane, deadline) in enumerate(lines)]
    for each in random.sample(waiting, len(waiting)):
        queue.push(each)
    for gone in random.sample(waiting, len(waiting) // 2):
        queue.remove(gone)
        waiting.remove(gone)
    queue.check_invariants()
    expected = sorted(waiting, key=lambda each: (each.turn.priority, each.turn.deadline, each.turn.arrival))
    assert queue.candidates(99) == expected


# ------------------------------------------------------------------- time to first token beside a backlog


def backlog(bench: Bench, count: int, random: Random) -> None:
    for number in range(count):
        bench.add(f"b{number}", BATCH, prompt=random.randint(4, 60), output=random.randint(20, 200))


def check_users_beside_a_backlog(bench: Bench, prompt: int, allowed: float, random: Random) -> None:
    """Every one of many users, also when a request of the backlog is due."""
    backlog(bench, 4 * bench.max_batch_size, random)
    for _ in range(random.randint(1, 60)):
        bench.step()
    for number in range(2 * MAX_OVERTAKES):
        if len(bench.waiting) < bench.max_batch_size:
            bench.add(f"more{number}", BATCH, output=100)
        bench.add(f"user{number}", USER, prompt, output=random.randint(1, 12))
        waited = bench.until(f"user{number}")
        assert waited <= allowed, f"user {number} waited {waited} steps"
        bench.until(f"user{number}", tokens=12)
        for _ in range(random.randint(0, 3)):
            bench.step()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), prompt=st.integers(1, 300), size=st.integers(2, 8))
def test_beside_a_steady_backlog_a_user_waits_half_as_long_again_and_a_step_at_most(
    seed: int, prompt: int, size: int
) -> None:
    """Where slots are short: what gave way is still in the prefix cache when it comes back."""
    allowed = 1.5 * idle_steps(prompt, size) + 1
    bench = Bench(num_blocks=1_000, max_batch_size=size, caching=True)
    check_users_beside_a_backlog(bench, prompt, allowed, Random(seed))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 32), prompt=st.integers(1, 300), size=st.integers(2, 8))
def test_where_memory_is_short_a_user_waits_for_one_recompute_of_it_besides(
    seed: int, prompt: int, size: int
) -> None:
    blocks = 110
    recompute = -(-4 * blocks // 64)
    allowed = 1.5 * idle_steps(prompt, size) + 1 + recompute
    check_users_beside_a_backlog(Bench(num_blocks=blocks, max_batch_size=size), prompt, allowed, Random(seed))


def test_a_users_prompt_takes_the_whole_budget_but_for_the_decodes() -> None:
    bench = Bench(max_batch_size=4, max_batch_tokens=32)
    for number in range(3):
        bench.add(f"b{number}", BATCH, prompt=4)
    bench.step()
    bench.add("long", BATCH, prompt=200)
    bench.step()
    bench.add("user", USER, prompt=60)
    sizes = [{c.request_id: len(c.token_ids) for c in bench.step().chunks} for _ in range(3)]
    assert sum("user" in step for step in sizes) == 3
    assert [step["user"] for step in sizes[:2]] == [30, 30]
    assert "long" not in sizes[0], "it gave its place to the user, or waits for the budget"


def test_no_decode_waits_for_a_prompt_however_long() -> None:
    bench = Bench(max_batch_tokens=16)
    for number in range(6):
        bench.add(f"b{number}", BATCH, prompt=2, output=60)
    bench.step()
    bench.step()
    bench.add("user", USER, prompt=200)
    for _ in range(10):
        assert {c.request_id for c in bench.step().chunks} >= {f"b{number}" for number in range(6)}


def test_with_no_more_tokens_than_slots_a_user_joins_at_once_all_the_same() -> None:
    bench = Bench(max_batch_size=4, max_batch_tokens=4)
    for number in range(4):
        bench.add(f"b{number}", BATCH, prompt=1, output=100)
    for _ in range(3):
        bench.step()
    bench.add("user", USER, prompt=1)
    assert bench.until("user") == 1


# -------------------------------------------------------------------------------------------- giving way


def full_house(*lanes: int, output: int = 100) -> Bench:
    """As many running requests as there are slots, one of each lane given."""
    bench = Bench(max_batch_size=len(lanes))
    for number, lane in enumerate(lanes):
        bench.add(f"r{number}", lane, prompt=4 + 4 * number, output=output)
    for _ in range(5):
        bench.step()
    assert len(bench.running) == len(lanes)
    return bench


def displaced(bench: Bench) -> list[str]:
    return [each.id for each in bench.requests.values() if each.status is Status.PREEMPTED]


def test_the_lowest_lane_gives_way_first_and_in_it_the_one_with_least_work() -> None:
    bench = full_house(1, 3, 3, 2)
    bench.add("user", USER)
    bench.step()
    assert displaced(bench) == ["r1"]


@pytest.mark.parametrize("lane", range(4))
def test_nobody_takes_the_place_of_its_own_lane_or_a_higher_one(lane: int) -> None:
    bench = full_house(*list(range(lane + 1)) * 2)
    bench.add("late", lane)
    for _ in range(20):
        bench.step()
    assert displaced(bench) == [
        each for each in displaced(bench) if bench.requests[each].turn.priority > lane
    ]
    assert not displaced(bench)


def test_a_higher_lane_stays_though_all_of_the_lower_one_have_given_way_before() -> None:
    bench = full_house(1, BATCH, BATCH, output=300)
    for number in range(12):
        bench.add(f"user{number}", USER, output=1)
        bench.until(f"user{number}")
        bench.step()
        bench.step()
    assert bench.requests["r0"].turn.preemptions == 0


def test_one_that_gave_way_goes_on_when_there_is_room_and_loses_no_token() -> None:
    bench = full_house(BATCH, BATCH)
    before = bench.requests["r0"].num_output_tokens
    bench.add("user", USER, output=3)
    bench.until("user", tokens=3)
    assert bench.requests["r0"].num_output_tokens == before
    bench.step()
    assert bench.requests["r0"].status is Status.RUNNING
    bench.drain()
    assert [each.num_output_tokens for each in bench.requests.values()] == [100, 100, 3]


def test_one_that_gave_way_brings_a_token_before_it_gives_way_again() -> None:
    bench = full_house(BATCH, output=60)
    batch = bench.requests["r0"]
    for number in range(200):
        if batch.status is Status.FINISHED:
            break
        bench.step()
        came_with = batch.num_output_tokens
        bench.add(f"user{number}", USER, output=1)
        bench.until(f"user{number}")
        assert batch.num_output_tokens - came_with <= (SHORTEST_STAY if batch.turn.keeps_place else 1)
    assert batch.num_output_tokens == 60
    assert 10 < batch.turn.preemptions <= 60


def test_the_burden_is_passed_around_while_there_are_others() -> None:
    bench = full_house(BATCH, BATCH, BATCH, BATCH, output=200)
    for number in range(8):
        bench.add(f"user{number}", USER, output=1)
        bench.until(f"user{number}")
        bench.step()
    assert [bench.requests[f"r{number}"].turn.preemptions for number in range(4)] == [2, 2, 2, 2]


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1 << 32), blocks=st.integers(60, 300), size=st.integers(1, 8))
def test_under_any_load_the_rules_hold_all_ends_and_nobody_gives_way_for_nothing(
    seed: int, blocks: int, size: int
) -> None:
    random = Random(seed)
    bench = Bench(num_blocks=blocks, max_batch_size=size, max_batch_tokens=random.choice([8, 16, 64]))
    for number in range(40):
        lane = random.choice([0, 0, 1, 2, 2, 3])
        deadline = random.choice([float("inf"), random.random()])
        bench.add(f"r{number}", lane, random.randint(1, 40), random.randint(1, 80), deadline)
        for _ in range(random.choice([0, 0, 1, 5, 20])):
            bench.step()
    bench.drain()
    assert all(each.num_output_tokens == each.max_output_tokens for each in bench.requests.values())


# ----------------------------------------------------------------------------------------------- ageing


def users_without_end(bench: Bench, at_once: int) -> Iterator[int]:
    """Keeps more users in the engine than it has slots; yields after every step."""
    for step in range(10_000):
        while len(bench.unfinished) <= at_once:
            bench.add(f"u{len(bench.requests)}", USER, prompt=4, output=20)
        bench.step()
        yield step


def test_a_lane_that_is_passed_over_is_served_within_its_time() -> None:
    """20 steps a second, and users of a second each in four slots: the time runs out before the count."""
    bench = Bench(max_batch_size=2, step_s=0.25)
    bench.add("u0", USER, output=20)
    batch = bench.add("batch", BATCH, output=4)
    for _ in users_without_end(bench, at_once=6):
        if batch.num_output_tokens:
            break
    assert bench.clock.now <= 2 * AGEING_S + 20 * 0.25
    assert bench.clock.now >= AGEING_S


def test_one_that_was_due_gets_somewhere_before_it_gives_way_again() -> None:
    bench = Bench(max_batch_size=2, step_s=0.5)
    bench.add("u0", USER, output=20)
    batch = bench.add("batch", BATCH, output=100)
    for _ in users_without_end(bench, at_once=6):
        if batch.status is Status.FINISHED:
            break
    assert batch.num_output_tokens == 100
    assert 1 <= batch.turn.preemptions <= 100 / SHORTEST_STAY


def test_one_that_is_due_does_not_keep_users_waiting_while_others_can_give_way() -> None:
    bench = Bench(max_batch_size=5)
    bench.add("peer", 1, prompt=400, output=500)
    for number in range(4):
        bench.add(f"b{number}", BATCH, output=500)
    for _ in range(10):
        bench.step()
    giant = bench.add("giant", 1, prompt=700, output=100)  # does not fit beside its peer
    was_due = False
    for number in range(3 * MAX_OVERTAKES):
        bench.add(f"user{number}", USER, prompt=4, output=1)
        assert bench.until(f"user{number}") == 1
        was_due |= giant.turn.is_due
        for _ in range(5):
            bench.step()
    assert was_due
    bench.drain()


def test_who_joins_in_anothers_place_preempts_somebody_though_there_is_room() -> None:
    bench = full_house(BATCH, BATCH, BATCH, output=40)
    bench.scheduler.abort("r0")
    bench.step()
    user, running = bench.add("user", USER, prompt=30), bench.running
    admission = Admission(bench.memory, 3, StepBudget(64), 0.0, OutputEstimate())
    admission.look(running)
    assert admission.make_room(user, [], running, in_place=False) == []
    assert admission.make_room(user, [], running, in_place=True) == [bench.requests["r1"]]
    late = bench.add("late", BATCH, prompt=30)
    assert admission.make_room(late, [], running, in_place=True) is None


def test_while_one_is_due_nothing_else_takes_what_becomes_free() -> None:
    bench = full_house(BATCH, BATCH, output=1_000)
    bench.add("giant", BATCH, prompt=900, output=100)
    bench.add("small", BATCH, prompt=4, output=4)
    bench.requests["giant"].turn.overtaken = MAX_OVERTAKES
    bench.scheduler.abort("r0")
    for _ in range(50):
        bench.step()
    assert bench.requests["small"].status is Status.WAITING
    bench.scheduler.abort("r1")
    bench.step()
    assert bench.requests["giant"].status is Status.RUNNING
    bench.drain()
