"""n answers to one prompt: it is computed once, and each answer is what a request of its own would get."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import EngineRequest, Output, SamplingParams
from headrace.gpu_engine.fan_out import FanOut
from headrace.gpu_engine.sampling.noise import derive_seed
from tests.unit.engine.fakes import Answer, Bench, request
from tests.unit.sampling.logit_runner import LogitRunner
from tests.unit.sampling.naive import naive_answer


def many(name: str, prompt: Sequence[int] | int, **params: object) -> EngineRequest:
    one = request(name, prompt)
    return msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, **params))


def run(bench: Bench, requests: Sequence[EngineRequest]) -> dict[tuple[str, int], Answer]:
    engine = FanOut(bench.engine)
    for one in requests:
        error = engine.add(one)
        assert error is None, error.message
    answers: dict[tuple[str, int], Answer] = {}
    while engine.has_work:
        read(engine.step(), answers)
        bench.engine.check_invariants()
    return answers


def read(outputs: Sequence[Output], answers: dict[tuple[str, int], Answer]) -> None:
    for output in outputs:
        answers.setdefault((output.id, output.index), Answer()).read(output)


def alone(one: EngineRequest, index: int) -> list[int]:
    assert one.params.seed is not None
    seed = derive_seed(one.params.seed, index)
    return naive_answer(msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, seed=seed)))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.integers(14, 40),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.4]),
    st.randoms(use_true_random=False),
)
def test_each_answer_is_the_one_that_its_seed_gives_alone(
    blocks: int, max_batch_tokens: int, preempted: float, random: Random
) -> None:
    random = Random(random.getrandbits(32))
    bench = Bench(
        num_blocks=blocks,
        prefix_caching=random.random() < 0.5,
        num_host_slots=random.choice([0, 8]),
        max_batch_tokens=max_batch_tokens,
        runner=LogitRunner,
        preempt_hook=lambda step, running: [one for one in running if random.random() < preempted],
    )
    requests = [
        many(
            f"r{number}",
            random.randint(1, 14),
            n=random.randint(1, 4),
            max_tokens=random.choice([1, 3, 7]),
            presence_penalty=random.choice([0.0, 1.5]),
            ignore_eos=random.random() < 0.5,
            seed=random.randrange(9),
        )
        for number in range(3)
    ]
    answers = run(bench, requests)
    expected = {(one.id, i): alone(one, i) for one in requests for i in range(one.params.n)}
    assert {name: answer.token_ids for name, answer in answers.items()} == expected


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 15])
def test_the_prompt_is_computed_once_but_for_its_last_token(length: int, caching: bool) -> None:
    bench = Bench(block_size=4, max_batch_tokens=64, prefix_caching=caching)
    answers = run(bench, [many("r", length, n=5, max_tokens=6)])
    assert len(answers) == 5
    assert num_computed(bench) == length + 4 + 5 * 5  # the last token of an answer is never computed
    copied = [len(plan.copies) for plan in bench.runner.plans]
    assert sum(copied) == (4 if (length - 1) % 4 else 0), "of the block that is not full, for each other one"


def test_answers_that_join_when_the_first_has_ended_find_what_the_prefix_cache_has() -> None:
    bench = Bench(block_size=4, max_batch_tokens=64)
    run(bench, [many("r", 7, n=3, max_tokens=1)])
    assert num_computed(bench) == 7 + 2 * 3


def test_what_is_not_the_same_prompt_or_adapter_is_not_shared() -> None:
    first = request("first", [*range(1, 10)], 9)
    others = {
        "other prompt": request("other prompt", [*range(2, 11)], 3),
        "longer": request("longer", [*range(1, 12)], 3),
        "unknown": request("unknown", [*range(1, 10)], 3),
    }
    bench = Bench(block_size=4, max_batch_tokens=64, prefix_caching=False)
    bench.add(first)
    bench.step()
    for name, other in others.items():
        bench.add(msgspec.structs.replace(other, prompt_of="nobody" if name == "unknown" else "first"))
    bench.step()
    assert [plan.copies for plan in bench.runner.plans] == [[], []]
    assert num_computed(bench) == 9 + 1 + 9 + 11 + 9


def num_computed(bench: Bench) -> int:
    return sum(len(each.token_ids) for plan in bench.runner.plans for each in plan.chunks)


@pytest.mark.parametrize("caching", [True, False])
def test_answers_of_one_prompt_share_its_blocks_while_they_run(caching: bool) -> None:
    bench = Bench(
        num_blocks=15,
        block_size=4,
        max_batch_tokens=64,
        expected_output=0,
        prefix_caching=caching,
    )
    engine = FanOut(bench.engine)
    # 9 blocks alone; 27 if nothing were shared, and there are 14
    assert engine.add(many("r", 32, n=3, max_tokens=3)) is None
    engine.step()
    engine.step()
    assert engine.num_running == 3
    assert bench.engine.preemptions == 0


def test_the_first_answer_has_the_seed_of_the_request_and_the_others_their_own() -> None:
    assert derive_seed(7, 0) == 7
    seeds = {derive_seed(seed, index) for seed in (0, 1, 2, -1) for index in range(100)}
    assert len(seeds) == 400
    assert [derive_seed(0, 1), derive_seed(42, 3)] == [627405149472732430, 18036798128018490698]


def test_of_best_of_the_likeliest_are_told_best_first_and_whole() -> None:
    one = many("r", 5, n=2, best_of=6, max_tokens=5, seed=3)
    whole = run(Bench(runner=LogitRunner), [msgspec.structs.replace(one, params=_all_of(one.params))])
    means = {i: sum(t.logprob for t in whole["r", i].logprobs) / 5 for i in range(6)}
    ranked = sorted(means, key=lambda index: -means[index])
    best = run(Bench(runner=LogitRunner), [one])
    assert [best["r", place].token_ids for place in (0, 1)] == [whole["r", i].token_ids for i in ranked[:2]]
    assert best.keys() == {("r", 0), ("r", 1)}
    assert best["r", 0].logprobs == []
    assert best["r", 0].last is not None
    assert best["r", 0].last.finish_reason == "length"


def _all_of(params: SamplingParams) -> SamplingParams:
    return msgspec.structs.replace(params, n=6, best_of=None, logprobs=0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_abort_ends_every_answer_whether_it_has_begun_or_not(steps: int) -> None:
    bench = Bench(max_batch_tokens=4)
    engine = FanOut(bench.engine)
    assert engine.add(many("r", 4, n=3, max_tokens=9)) is None
    answers: dict[tuple[str, int], Answer] = {}
    for _ in range(steps):
        read(engine.step(), answers)
    engine.abort("r")
    while engine.has_work:
        read(engine.step(), answers)
    reasons = [answer.last.finish_reason for answer in answers.values() if answer.last is not None]
    assert reasons == ["abort"] * 3
    bench.engine.check_invariants()
    assert engine.add(many("r", 4, n=3)) is None, "the id is free again"


def abort_at_once(one: EngineRequest) -> dict[tuple[str, int], Answer]:
    """What comes of a request that is aborted before its first step."""
    bench = Bench()
    engine = FanOut(bench.engine)
    assert engine.add(one) is None
    engine.abort(one.id)
    answers: dict[tuple[str, int], Answer] = {}
    while engine.has_work:
        read(engine.step(), answers)
        bench.engine.check_invariants()
    return answers


def reasons_of(answers: dict[tuple[str, int], Answer]) -> list[str | None]:
    return [answers[name].last.finish_reason for name in sorted(answers)]  # type: ignore[union-attr]


@pytest.mark.parametrize("others", [[], [[1], [2]]])
def test_an_abort_ends_the_other_answers_though_the_first_had_ended_before_it(
    others: list[list[int]],
) -> None:
    one = many("r", 5, n=3, max_tokens=20)
    answers = abort_at_once(msgspec.structs.replace(one, output_ids=[1] * 20, other_outputs=others))
    assert reasons_of(answers) == ["length", "abort", "abort"]
    assert all(answer.token_ids == [] for answer in answers.values())


def test_an_interrupted_answer_that_is_aborted_ends_with_its_own_text_and_not_with_the_firsts() -> None:
    one = many("r", 5, n=3, max_tokens=20, stop=("bc", "de"))
    answers = abort_at_once(msgspec.structs.replace(one, output_ids=[1], other_outputs=[[3], [5]]))
    assert reasons_of(answers) == ["abort"] * 3
    assert [answers["r", i].text for i in range(3)] == ["b", "d", ""], "held back, each by itself"


def test_a_prompt_that_fails_fails_every_answer() -> None:
    answers = run(Bench(nan_for=["r\0" + "0"]), [many("r", 4, n=3)])
    assert [answer.last.error is not None for answer in answers.values() if answer.last] == [True] * 3


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 2, "top_p": 0}, "top_p"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(asked: dict[str, object], param: str) -> None:
    engine = FanOut(Bench().engine)
    error = engine.add(many("r", 4, **asked))
    assert error is not None
    assert error.param == param
    assert not engine.has_work


@pytest.mark.parametrize("cuts", [(2, 3, 0), (0, 6, 1), (6, 0, 0), (6, 6, 6), (6, 2, 6)])
def test_answers_that_were_interrupted_go_on_each_from_its_own_tokens(cuts: tuple[int, ...]) -> None:
    one = many("r", 6, n=3, max_tokens=6, seed=3, prompt_logprobs=0)
    whole = run(Bench(runner=LogitRunner), [one])
    first, *others = [whole["r", i].token_ids[:cut] for i, cut in enumerate(cuts)]
    resumed = msgspec.structs.replace(one, output_ids=first, other_outputs=others)
    answers = run(Bench(runner=LogitRunner), [resumed])
    for i, kept in enumerate([first, *others]):
        answer = answers["r", i]
        assert kept + answer.token_ids == whole["r", i].token_ids
        assert answer.last is not None
        assert answer.last.finish_reason == "length"


def test_answers_that_cannot_go_on_are_refused_by_name() -> None:
    engine = FanOut(Bench().engine)
    for asked, others, param in [
        ({"n": 3}, [[1]], "other_outputs"),
        ({"n": 2, "best_of": 3}, [[1]], "best_of"),
    ]:
        one = msgspec.structs.replace(many("r", 4, **asked), output_ids=[1], other_outputs=others)
        error = engine.add(one)
        assert error is not None
        assert error.param == param


def test_an_id_in_use_is_refused_whether_it_has_one_answer_or_many() -> None:
    engine = FanOut(Bench().engine)
    assert engine.add(many("r", 4, n=2)) is None
    for again in (many("r", 4, n=2), many("r", 4)):
        error = engine.add(again)
        assert error is not None
        assert error.param == "id"
