"""The simulated engine keeps the promises of a real one, with the times it was told."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.api import Grammar, SamplingParams
from headrace.gpu_engine.config import EngineConfig, SimConfig
from headrace.gpu_engine.fan_out import FanOut
from headrace.gpu_engine.sim import SimEngine, expected_answer
from headrace.gpu_engine.text.sim import SimTokenizer
from tests.unit.engine_host.fakes import (
    GREEDY,
    FakeClock,
    drive,
    last_of,
    request,
    sim_engine,
    text_of,
    tokens_of,
)

TOKENIZER = SimTokenizer()


def answer_text(prompt: str, n: int, params: SamplingParams = GREEDY) -> str:
    return TOKENIZER.decode(expected_answer(TOKENIZER.encode(prompt), params, n))


# ---------------------------------------------------------------------------------------------- answers


def test_an_answer_is_the_expected_one_in_tokens_and_text() -> None:
    engine = sim_engine(tokens=20)
    assert engine.add(request("r", "tell me")) is None
    outputs = drive(engine)
    assert tokens_of(outputs, "r") == expected_answer(TOKENIZER.encode("tell me"), GREEDY, 20)
    assert text_of(outputs, "r") == answer_text("tell me", 20)


def test_answers_are_readable_words() -> None:
    text = answer_text("tell me", 600)
    words = text.split()
    assert all(len(word) == 5 and word.isascii() and word.isalpha() for word in words)
    assert len(set(words)) == len(words) == 100


def test_prompts_that_differ_in_anything_have_answers_that_differ_from_the_start() -> None:
    answers = {tuple(expected_answer(ids, GREEDY, 12)) for ids in ([1], [2], [1, 1], [1, 2], [2, 1], [256])}
    assert len(answers) == 6


def test_the_seed_changes_sampled_answers_and_leaves_greedy_ones() -> None:
    def answer(temperature: float, seed: int) -> list[int]:
        return expected_answer([1], SamplingParams(temperature=temperature, seed=seed), 30)

    assert answer(1.0, 1) == answer(0.5, 1) != answer(1.0, 2)
    assert answer(1.0, -1) != answer(1.0, 1)
    assert answer(0.0, 1) == answer(0.0, 2)


@settings(deadline=None, max_examples=60)
@given(
    prompts=st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.integers(1, 9)), max_size=9),
    batch=st.integers(1, 4),
    data=st.data(),
)
def test_every_request_gets_its_own_answer_whatever_runs_beside_it_and_wherever_it_was_cut(
    prompts: list[tuple[str, int]], batch: int, data: st.DataObject
) -> None:
    engine = sim_engine(batch=batch)
    kept = {}
    for index, (prompt, n) in enumerate(prompts):
        kept[index] = expected_answer(TOKENIZER.encode(prompt), GREEDY, data.draw(st.integers(0, n)))
        params = SamplingParams(temperature=0.0, max_tokens=n)
        assert engine.add(request(str(index), prompt, params=params, output_ids=kept[index])) is None
    outputs = drive(engine)
    for index, (prompt, n) in enumerate(prompts):
        whole = expected_answer(TOKENIZER.encode(prompt), GREEDY, n)
        assert kept[index] + tokens_of(outputs, str(index)) == whole
        assert TOKENIZER.decode(kept[index]) + text_of(outputs, str(index)) == TOKENIZER.decode(whole)
        assert last_of(outputs, str(index)).finish_reason == "length"
    assert Counter(o.id for o in outputs if o.finish_reason) == {str(i): 1 for i in range(len(prompts))}


# ------------------------------------------------------------------------------------------------- times


def test_the_first_token_comes_after_its_time_and_each_further_one_a_step_later() -> None:
    clock = FakeClock()
    engine = sim_engine(clock, first_token_ms=500, step_ms=125, tokens=3)
    engine.add(request("r"))
    times = []
    while engine.has_work:
        times += [clock.now for output in engine.step() if output.token_ids]
    assert times == [0.5, 0.625, 0.75]


def test_a_step_gives_one_token_to_each_of_at_most_max_batch_size_requests() -> None:
    engine = sim_engine(batch=3, first_token_ms=0, step_ms=125, tokens=4)
    for index in range(7):
        engine.add(request(str(index), str(index)))
    widths = []
    while engine.has_work:
        widths.append([output.id for output in engine.step()])
        assert engine.num_running <= 3
    assert widths == [["0", "1", "2"]] * 4 + [["3", "4", "5"]] * 4 + [["6"]] * 4


def test_a_step_sleeps_only_what_is_left_of_it() -> None:
    class BusyClock(FakeClock):
        def read(self) -> float:
            self.now += 0.0625
            return self.now

    clock = BusyClock()
    engine = sim_engine(clock, first_token_ms=0, step_ms=250, tokens=1)
    engine.add(request("r"))
    engine.step()
    assert clock.sleeps == [0.1875]


def test_waiting_for_a_late_first_token_does_not_make_a_long_step() -> None:
    clock = FakeClock()
    engine = sim_engine(clock, first_token_ms=60_000, step_ms=0)
    engine.add(request("r"))
    engine.step()
    assert 0 < clock.now <= 0.01


def test_a_real_step_takes_its_time() -> None:
    config = EngineConfig.model_validate({"engine": "sim", "sim": {"first_token_ms": 0, "step_ms": 20}})
    engine = SimEngine(config)
    engine.add(request("r"))
    began = time.monotonic()
    engine.step()
    assert time.monotonic() - began >= 0.02


# -------------------------------------------------------------------------------------------------- ends


def test_a_request_without_a_limit_ends_by_itself() -> None:
    engine = sim_engine(tokens=5)
    engine.add(request("r"))
    outputs = drive(engine)
    assert (len(tokens_of(outputs, "r")), last_of(outputs, "r").finish_reason) == (5, "stop")


def test_with_ignore_eos_it_goes_on_to_max_total_tokens() -> None:
    config = EngineConfig.model_validate(
        {"engine": "sim", "max_total_tokens": 50, "sim": {"first_token_ms": 0, "step_ms": 0, "tokens": 5}}
    )
    engine = SimEngine(config)
    engine.add(request("r", "1234567890", params=SamplingParams(ignore_eos=True)))
    outputs = drive(engine)
    assert (len(tokens_of(outputs, "r")), last_of(outputs, "r").finish_reason) == (40, "length")


def test_a_stop_string_ends_the_text_before_it_though_it_spans_steps() -> None:
    words = answer_text("tell me", 60)
    stop = words[8:14]
    engine = sim_engine()
    engine.add(request("r", "tell me", params=SamplingParams(temperature=0.0, max_tokens=60, stop=(stop,))))
    outputs = drive(engine)
    assert text_of(outputs, "r") == words[:8]
    assert last_of(outputs, "r").finish_reason == "stop"
    assert len(tokens_of(outputs, "r")) == 14


def test_text_held_back_for_a_stop_string_is_shown_when_the_length_ends_it() -> None:
    words = answer_text("tell me", 10)
    params = SamplingParams(temperature=0.0, max_tokens=10, stop=(words[6:10] + "?",))
    engine = sim_engine()
    engine.add(request("r", "tell me", params=params))
    outputs = drive(engine)
    assert text_of(outputs, "r") == words
    assert last_of(outputs, "r").text == words[6:10]


@pytest.mark.parametrize("resumed", [10, 12], ids=["just enough", "too many"])
def test_a_resumed_answer_that_is_complete_ends_at_once(resumed: int) -> None:
    engine = sim_engine()
    output_ids = expected_answer(TOKENIZER.encode("prompt"), GREEDY, resumed)
    engine.add(request("r", params=SamplingParams(max_tokens=10), output_ids=output_ids))
    [output] = engine.step()
    assert (output.token_ids, output.text, output.finish_reason) == ([], "", "length")


def test_a_resumed_answer_with_a_whole_stop_string_ends_at_once_with_stop() -> None:
    engine = sim_engine()
    params = SamplingParams(max_tokens=10, stop=("nd",))
    engine.add(request("r", params=params, output_ids=list(b"the end")))
    [output] = drive(engine)
    assert (output.text, output.finish_reason) == ("", "stop")


# ------------------------------------------------------------------------------------------------ aborts


def test_an_abort_is_told_in_the_next_step_whether_the_request_runs_or_waits() -> None:
    engine = sim_engine(batch=1, first_token_ms=0)
    engine.add(request("running"))
    engine.add(request("waiting"))
    engine.step()
    engine.abort("running")
    engine.abort("waiting")
    assert (engine.num_running, engine.num_waiting, engine.has_work) == (0, 0, True)
    assert [(output.id, output.finish_reason) for output in engine.step()] == [
        ("running", "abort"),
        ("waiting", "abort"),
    ]
    assert not engine.has_work


def test_aborting_what_is_unknown_or_finished_changes_nothing() -> None:
    engine = sim_engine(tokens=1)
    engine.add(request("r"))
    drive(engine)
    engine.abort("r")
    engine.abort("never heard of")
    assert not engine.has_work


def test_an_id_is_free_again_once_its_abort_was_told_and_waits_at_the_end_of_the_line() -> None:
    engine = sim_engine(batch=1, first_token_ms=0, tokens=1)
    for request_id in "abc":
        engine.add(request(request_id))
    engine.abort("b")
    assert engine.add(request("b")) is not None
    outputs = engine.step()
    assert engine.add(request("b")) is None
    outputs += drive(engine)
    assert [(output.id, output.finish_reason) for output in outputs] == [
        ("b", "abort"),
        ("a", "stop"),
        ("c", "stop"),
        ("b", "stop"),
    ]


# --------------------------------------------------------------------------------------- order, refusals


def test_lower_priority_numbers_run_first_and_equals_in_order_of_arrival() -> None:
    engine = sim_engine(batch=1, tokens=1)
    for request_id, priority in [("c1", 2), ("a1", 0), ("c2", 2), ("b1", 1), ("a2", 0)]:
        engine.add(request(request_id, priority=priority))
    assert [output.id for output in drive(engine)] == ["a1", "a2", "b1", "c1", "c2"]


def test_within_a_priority_the_earliest_deadline_goes_first_and_those_without_go_last() -> None:
    engine = sim_engine(batch=1, tokens=1)
    for request_id, priority, deadline_ms in [("b", 2, 1), ("none", 1, None), ("late", 1, 9), ("soon", 1, 5)]:
        engine.add(request(request_id, priority=priority, deadline_ms=deadline_ms))
    assert [output.id for output in drive(engine)] == ["soon", "late", "none", "b"]


def limited(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens)


def test_a_higher_lane_takes_the_place_of_the_lowest_and_no_token_is_lost_by_it() -> None:
    engine = sim_engine(batch=2, first_token_ms=0)
    prompts = {"standard": 1, "batch": 2}
    for name, priority in prompts.items():
        engine.add(request(name, name, priority=priority, params=limited(40)))
    outputs = engine.step() + engine.step()
    engine.add(request("user", "user", priority=0, params=limited(3)))
    for _ in range(3):
        step = engine.step()
        assert {output.id for output in step} == {"user", "standard"}
        outputs += step
    outputs += drive(engine)
    assert engine.preemptions == 1
    for name in prompts:
        assert tokens_of(outputs, name) == expected_answer(TOKENIZER.encode(name), GREEDY, 40)


def test_nobody_takes_the_place_of_its_own_lane() -> None:
    engine = sim_engine(batch=1, first_token_ms=0)
    engine.add(request("first", priority=0, params=limited(5)))
    engine.step()
    engine.add(request("second", priority=0, params=limited(5)))
    assert [output.id for output in drive(engine)] == ["first"] * 4 + ["second"] * 5
    assert engine.preemptions == 0


def test_what_was_preempted_waits_its_first_token_time_again_and_never_gives_way_for_nothing() -> None:
    clock = FakeClock()
    engine = sim_engine(clock, batch=1, first_token_ms=50, step_ms=10)
    engine.add(request("batch", priority=2, params=limited(40)))
    times = []
    for number in range(4):
        while "batch" not in {output.id for output in engine.step()}:
            pass
        engine.add(request(f"user{number}", priority=0, params=limited(1)))
        began = clock.now
        while f"user{number}" not in {output.id for output in engine.step()}:
            pass
        times.append(clock.now - began)
    assert all(0.05 <= waited < 0.07 for waited in times), "a step more at most, where 0.05 is no float"
    outputs = drive(engine)
    assert engine.preemptions == 4
    assert len(tokens_of(outputs, "batch")) == 36


def test_a_low_lane_is_served_within_its_time_under_endless_users() -> None:
    clock = FakeClock()
    config = EngineConfig(
        engine="sim", max_batch_size=1, priority_ageing_ms=1000, sim=SimConfig(first_token_ms=0, step_ms=100)
    )
    engine = SimEngine(config, clock=clock.read, sleep=clock.sleep)
    engine.add(request("user0", priority=0, params=limited(2)))
    engine.step()
    engine.add(request("batch", priority=3, params=limited(1)))
    number, served = 0, False
    while not served:
        number += 1
        engine.add(request(f"user{number}", priority=0, params=limited(2)))
        served = "batch" in {output.id for _ in range(2) for output in engine.step()}
    assert 1.0 <= clock.now <= 1.5


def test_an_abort_of_what_was_preempted_frees_its_place_in_the_line() -> None:
    engine = sim_engine(batch=1, first_token_ms=0)
    engine.add(request("batch", priority=2, params=limited(40)))
    engine.step()
    engine.add(request("user", priority=0, params=limited(2)))
    engine.step()
    engine.abort("batch")
    outputs = drive(engine)
    assert last_of(outputs, "batch").finish_reason == "abort"
    assert last_of(outputs, "user").finish_reason == "length"


@settings(deadline=None, max_examples=60)
@given(batch=st.integers(1, 4), data=st.data())
def test_with_lanes_every_request_gets_its_own_answer_whoever_gives_way(
    batch: int, data: st.DataObject
) -> None:
    engine = sim_engine(batch=batch, first_token_ms=0)
    outputs, lengths = [], {}
    for number in range(12):
        lengths[f"r{number}"] = tokens = data.draw(st.integers(1, 30))
        priority, deadline_ms = data.draw(st.integers(0, 3)), data.draw(st.none() | st.integers(0, 9))
        name = f"r{number}"
        engine.add(request(name, name, priority=priority, deadline_ms=deadline_ms, params=limited(tokens)))
        for _ in range(data.draw(st.integers(0, 9))):
            outputs += engine.step()
            assert engine.num_running <= batch
    outputs += drive(engine)
    for name, tokens in lengths.items():
        assert tokens_of(outputs, name) == expected_answer(TOKENIZER.encode(name), GREEDY, tokens)


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers() -> None:
    error = sim_engine().add(request("r", "x" * 8193))
    assert error is not None
    assert error.code == "context_length_exceeded"
    assert "8193" in error.message
    assert "8192" in error.message


def test_a_duplicate_of_an_unfinished_id_is_refused_and_the_first_goes_on() -> None:
    engine = sim_engine(tokens=2)
    engine.add(request("r"))
    error = engine.add(request("r", "other"))
    assert error is not None
    assert error.param == "id"
    assert len(tokens_of(drive(engine), "r")) == 2


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=0),
        SamplingParams(temperature=float("nan")),
        SamplingParams(top_p=0.0),
        SamplingParams(stop=("",)),
    ],
)
def test_parameters_that_a_real_engine_refuses_are_refused(params: SamplingParams) -> None:
    assert sim_engine().add(request("r", params=params)) is not None


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(logprobs=0), "logprobs"),
        (SamplingParams(prompt_logprobs=0), "prompt_logprobs"),
        (
            SamplingParams(grammar=Grammar(kind="regex", source="a", param="response_format")),
            "response_format",
        ),
        (SamplingParams(best_of=2), "best_of"),
        (SamplingParams(best_of=2, logprobs=0), "logprobs"),
    ],
)
def test_what_it_does_not_have_is_refused_by_the_name_of_what_was_asked_for(
    params: SamplingParams, param: str
) -> None:
    engine = FanOut(sim_engine())
    error = engine.add(request("r", params=params))
    assert error is not None
    assert error.param == param
    assert param in error.message
    assert not engine.has_work


# ------------------------------------------------------------------------------------ failures on purpose


def test_each_nth_request_fails_and_its_neighbours_do_not() -> None:
    engine = sim_engine(fail_every=3, tokens=2)
    for index in range(1, 8):
        engine.add(request(str(index)))
    outputs = drive(engine)
    failed = [output.id for output in outputs if output.error]
    assert failed == ["3", "6"]
    assert Counter(o.id for o in outputs if o.finish_reason) == dict.fromkeys("12457", 1)


def test_the_process_dies_in_the_step_it_was_told_to() -> None:
    class Died(Exception):
        pass

    def die() -> None:
        raise Died

    config = EngineConfig.model_validate({"engine": "sim", "sim": {"crash_after_steps": 3, "step_ms": 0}})
    engine = SimEngine(config, crash=die)
    engine.add(request("r"))
    engine.step()
    engine.step()
    with pytest.raises(Died):
        engine.step()


def test_the_engine_hangs_in_the_step_it_was_told_to() -> None:
    class Awake(Exception):
        pass

    class Patience(FakeClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.sleeps) > 10:
                raise Awake

    clock = Patience()
    engine = sim_engine(clock, first_token_ms=0, step_ms=125, hang_after_steps=2)
    engine.add(request("r"))
    engine.step()
    with pytest.raises(Awake):
        engine.step()
    assert clock.now > 9 * 3600
