"""The engine's public promises: one end for each request, the right reason, all memory back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.gpu_engine.api import Engine, EngineRequest, SamplingParams
from headrace.gpu_engine.text.chat import check_text
from tests.unit.engine.fakes import EOS, Bench, LetterTokenizer, expected_tokens, next_token, request

TOTAL = 63 * 4


def prompt_before_eos(count: int) -> list[int]:
    """A prompt after which the model says exactly `count` tokens and then the end token."""
    for first in range(100_000):
        context = [first % 31, first // 31 % 31, first // 961 % 31, first % 7]
        prompt = list(context)
        while len(context) - 4 <= count:
            context.append(next_token(context, 0))
        if EOS in context[4:] and context.index(EOS, 4) == 4 + count:
            return prompt
    raise AssertionError("no such prompt")


def letters(tokens: list[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_the_engine_is_an_engine() -> None:
    engine: Engine = Bench().engine
    assert engine.info.kv_tokens == engine.info.max_total_tokens == TOTAL
    assert engine.info.max_input_length == TOTAL - 1
    assert not engine.has_work
    assert engine.step() == []


# ------------------------------------------------------------------------------ how answers end


def test_the_end_token_stops_the_answer_and_has_no_text() -> None:
    bench = Bench()
    prompt = prompt_before_eos(3)
    bench.add(request("r", prompt, 10, ignore_eos=False))
    answer = bench.run()["r"]
    assert answer.token_ids[-1] == EOS
    assert answer.text == letters(answer.token_ids[:3])
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"


def test_an_end_token_at_the_last_allowed_place_is_a_stop() -> None:
    bench = Bench()
    bench.add(request("r", prompt_before_eos(3), 4, ignore_eos=False))
    answer = bench.run()["r"]
    assert len(answer.token_ids) == 4
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"


def test_ignore_eos_ignores_the_end_token_and_not_stop_strings() -> None:
    prompt = prompt_before_eos(2)
    one = request("r", prompt, 12, ignore_eos=True)
    tokens = expected_tokens(one, TOTAL)
    stop = letters(tokens[4:6])
    bench = Bench()
    bench.add(request("r", prompt, 12, ignore_eos=True, stop=[stop]))
    answer = bench.run()["r"]
    assert EOS in answer.token_ids
    assert answer.text == letters(tokens).split(stop)[0]
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"


def test_a_stop_string_at_the_last_allowed_place_is_a_stop_and_does_not_leak() -> None:
    tokens = expected_tokens(request("r", 5, 6), TOTAL)
    stop = letters(tokens[4:])
    bench = Bench()
    bench.add(request("r", 5, 6, stop=[stop]))
    answer = bench.run()["r"]
    assert answer.text == letters(tokens[:4])
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"


def test_a_stop_string_frees_the_request_before_its_max_tokens() -> None:
    tokens = expected_tokens(request("r", 5, 100), TOTAL)
    bench = Bench()
    bench.add(request("r", 5, 100, stop=[letters(tokens[2:4])]))
    bench.run()
    assert len(bench.answers["r"].token_ids) == 4
    assert not bench.engine.has_work


def test_a_stop_string_is_not_formed_with_the_prompts_tail() -> None:
    tokens = expected_tokens(request("r", [0, 1, 2], 6), TOTAL)
    bench = Bench()
    bench.add(request("r", [0, 1, 2], 6, stop=["c" + letters(tokens[:1])]))
    answer = bench.run()["r"]
    assert answer.last is not None
    assert answer.last.finish_reason == "length"


def test_text_held_back_for_a_stop_string_is_shown_when_the_answer_ends_by_length() -> None:
    tokens = expected_tokens(request("r", 5, 4), TOTAL)
    bench = Bench()
    bench.add(request("r", 5, 4, stop=[letters(tokens[3:]) + "!"]))
    assert bench.run()["r"].text == letters(tokens)


# ------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("kept", range(1, 8))
@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_a_resumed_answer_goes_on_where_it_stopped_and_repeats_nothing(kept: int, chunk: int) -> None:
    tokens = expected_tokens(request("r", 6, 8), TOTAL)
    bench = Bench(max_batch_tokens=chunk)
    bench.add(request("r", 6, 8, output_ids=tokens[:kept]))
    answer = bench.run()["r"]
    assert answer.token_ids == tokens[kept:]
    assert answer.text == letters(tokens[kept:])


def test_a_stop_string_that_began_before_the_interruption_is_found_after_it() -> None:
    tokens = expected_tokens(request("r", 6, 8), TOTAL)
    bench = Bench()
    bench.add(request("r", 6, 8, output_ids=tokens[:4], stop=[letters(tokens[3:6])]))
    answer = bench.run()["r"]
    assert answer.token_ids == tokens[4:6]
    assert answer.text == ""
    assert answer.last is not None
    assert answer.last.finish_reason == "stop"


@pytest.mark.parametrize(
    ("output_ids", "stop", "reason"),
    [
        ([1, 2, 3, 4], (), "length"),
        ([1, 2, 3, 4, 5], (), "length"),
        ([1, 2, EOS], (), "stop"),
        ([1, 2, 3, EOS], (), "stop"),
        ([1, 2], ("bc",), "stop"),
        ([1, 2, 3, 4], ("bc",), "stop"),
    ],
)
def test_a_resumed_answer_that_had_ended_ends_at_once_without_compute(
    output_ids: list[int], stop: tuple[str, ...], reason: str
) -> None:
    bench = Bench()
    bench.add(request("r", 6, 4, output_ids=output_ids, stop=stop, ignore_eos=False))
    assert bench.engine.has_work
    outputs = bench.step()
    assert [(output.id, output.token_ids, output.finish_reason) for output in outputs] == [("r", [], reason)]
    assert bench.runner.plans == []
    assert not bench.engine.has_work


# ------------------------------------------------------------------------------ abort


def wait_in_queue(bench: Bench) -> None:
    pass


def stop_between_chunks(bench: Bench) -> None:
    bench.step()


def stop_while_decoding(bench: Bench) -> None:
    for _ in range(6):
        bench.step()


def stop_while_preempted(bench: Bench) -> None:
    stop_while_decoding(bench)
    for number in range(2):
        bench.add(request(f"user{number}", 4, 4, priority=0))
    bench.step()
    assert bench.engine.preemptions >= 1


@pytest.mark.parametrize(
    "reach", [wait_in_queue, stop_between_chunks, stop_while_decoding, stop_while_preempted]
)
def test_an_abort_in_any_state_frees_at_once_and_brings_one_last_output(
    reach: Callable[[Bench], None],
) -> None:
    bench = Bench(max_batch_size=2, max_batch_tokens=4)
    for name in ("r", "other"):
        bench.add(request(name, 10, 30, priority=2))
    reach(bench)
    bench.engine.abort("r")
    bench.engine.abort("other")
    bench.engine.check_invariants()
    outputs = bench.step()
    ends = {output.id: output.finish_reason for output in outputs if output.finish_reason}
    assert ends["r"] == ends["other"] == "abort"
    bench.engine.abort("r")
    bench.run()


def test_aborts_of_unknown_and_finished_requests_are_ignored() -> None:
    bench = Bench()
    bench.engine.abort("unknown")
    bench.add(request("r", 4, 1))
    bench.run()
    bench.engine.abort("r")
    assert not bench.engine.has_work
    assert bench.engine.step() == []


def test_an_abort_shows_the_text_that_was_held_back() -> None:
    tokens = expected_tokens(request("r", 5, 4), TOTAL)
    bench = Bench()
    bench.add(request("r", 5, 30, stop=[letters(tokens[:2]) + "!"]))
    bench.step()
    bench.step()
    assert bench.answers["r"].text == ""
    bench.engine.abort("r")
    assert bench.run()["r"].text == letters(tokens[:2])


# ------------------------------------------------------------------------------ identity


def test_an_id_that_is_unfinished_is_refused_a_second_time() -> None:
    bench = Bench()
    bench.add(request("r", 4, 2))
    error = bench.engine.add(request("r", 4, 2))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", "id")
    bench.engine.abort("r")
    assert bench.engine.add(request("r", 4, 2)) is not None, "its last output is still to come"
    bench.run()


def test_an_id_may_be_used_again_and_starts_clean() -> None:
    bench = Bench()
    bench.add(request("r", 4, 30, stop=["never"]))
    bench.step()
    bench.engine.abort("r")
    bench.run()
    again = request("r", [5, 6, 7], 6)
    bench.add(again)
    answer = bench.run()["r"]
    assert answer.token_ids == expected_tokens(again, TOTAL)
    assert answer.text == letters(answer.token_ids)


def test_bad_words_that_are_no_text_are_refused_by_name_and_harm_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    bench.add(request("good", 4, 3))
    monkeypatch.setattr(LetterTokenizer, "encode_piece", lambda _, text: check_text(text) and [1])
    params = SamplingParams(bad_words=("a\ud800",))
    error = bench.engine.add(EngineRequest(id="bad", prompt_ids=[1], params=params))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", "bad_words")
    assert "lone surrogate" in error.message
    assert len(bench.run()["good"].token_ids) == 3


# ------------------------------------------------------------------------------ neighbours


def test_a_request_whose_numbers_are_not_finite_fails_alone_and_nothing_of_it_is_cached() -> None:
    shared = list(range(12))
    bench = Bench(max_batch_tokens=6, nan_for=["bad"])
    bench.add(request("bad", shared, 4))
    bench.add(request("good", [9, 9, 9], 4))
    answers = bench.run()
    bad = answers["bad"].last
    assert bad is not None
    assert bad.error is not None
    assert (bad.error.code, bad.finish_reason) == ("internal_error", None)
    assert answers["good"].token_ids == expected_tokens(request("good", [9, 9, 9], 4), TOTAL)
    bench.runner.nan_for.clear()
    bench.add(request("same prompt", shared, 4))
    answer = bench.run()["same prompt"]
    assert answer.token_ids == expected_tokens(request("same prompt", shared, 4), TOTAL)
    assert answer.last is not None
    assert answer.last.cached_tokens == 0


def test_a_request_that_fails_in_mid_answer_keeps_its_text_and_ends_with_the_error_alone() -> None:
    tokens = expected_tokens(request("r", 5, 9), TOTAL)
    bench = Bench()
    bench.add(request("r", 5, 9, stop=[letters(tokens[2:3]) + "!"]))
    for _ in range(3):
        bench.step()
    bench.runner.nan_for.add("r")
    (output,) = bench.step()
    assert output.error is not None
    assert (output.token_ids, output.text) == ([], "")
    assert bench.answers["r"].text == letters(tokens[:2])
    assert not bench.engine.has_work


@pytest.mark.parametrize("aborted", [True, False])
def test_the_end_of_one_request_leaves_another_with_the_same_prefix_alone(aborted: bool) -> None:
    shared = list(range(12))
    bench = Bench()
    bench.add(request("first", [*shared, 1], 30 if aborted else 4))
    bench.step()
    second = request("second", [*shared, 2], 20)
    bench.add(second)
    bench.step()
    if aborted:
        bench.engine.abort("first")
    for number in range(12):
        bench.add(request(f"new{number}", 9, 5))
    answer = bench.run()["second"]
    assert answer.last is not None
    assert answer.last.cached_tokens == 12
    assert answer.token_ids == expected_tokens(second, TOTAL)


@pytest.mark.parametrize("length", [8, 12, 13])
def test_a_full_prefix_hit_computes_at_least_one_token_and_gives_what_a_cold_run_gives(length: int) -> None:
    bench = Bench()
    cold = request("cold", list(range(length)), 5)
    bench.add(cold)
    bench.run()
    bench.add(request("warm", cold.prompt_ids, 5))
    bench.step()
    assert len(bench.runner.plans[-1].chunks[0].token_ids) == (length - 1) % 4 + 1
    assert bench.run()["warm"].token_ids == bench.answers["cold"].token_ids


def test_without_prefix_caching_every_prompt_is_computed_whole() -> None:
    bench = Bench(prefix_caching=False)
    for name in ("first", "second"):
        bench.add(request(name, list(range(12)), 2))
        bench.step()
        assert len(bench.runner.plans[-1].chunks[-1].token_ids) == 12
    assert bench.run()["second"].last is not None


def test_every_output_tells_the_cached_prompt_tokens() -> None:
    bench = Bench()
    bench.add(request("first", list(range(12)), 2))
    bench.run()
    bench.add(request("second", list(range(12)), 3))
    assert [output.cached_tokens for _ in range(3) for output in bench.step()] == [8, 8, 8]


def test_what_a_request_finds_of_its_own_after_a_preemption_is_not_counted_as_cached() -> None:
    bench = Bench(preempt_hook=lambda step, running: running)
    bench.add(request("r", 12, 5))
    outputs = [output for _ in range(5) for output in bench.step()]
    assert [output.cached_tokens for output in outputs] == [0] * 5
    assert len(bench.runner.plans[-1].chunks[0].token_ids) < 5, "it did find them"


def test_seeds_belong_to_requests_whatever_else_runs() -> None:
    alone = expected_tokens(request("r", [1, 2, 3], 9, seed=5), TOTAL)
    bench = Bench(num_blocks=9)
    for seed in range(8):
        bench.add(request(f"r{seed}", [1, 2, 3], 9, seed=seed))
    answers = bench.run()
    assert answers["r5"].token_ids == alone
    assert len({tuple(answer.token_ids) for answer in answers.values()}) > 1


def test_requests_without_a_seed_differ_and_greedy_ones_need_none() -> None:
    bench = Bench()
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    for number in range(4):
        bench.add(EngineRequest(id=f"r{number}", prompt_ids=[1, 2, 3], params=params))
    bench.add(EngineRequest(id="greedy", prompt_ids=[1], params=SamplingParams(temperature=0, max_tokens=1)))
    answers = bench.run()
    assert len({tuple(answers[f"r{number}"].token_ids) for number in range(4)}) == 4
    seeds = {chunk.request_id: chunk.params.seed for plan in bench.runner.plans for chunk in plan.chunks}
    assert seeds.pop("greedy") is None
    assert None not in seeds.values()


def test_at_idle_all_blocks_but_the_null_block_are_free_those_with_cached_content_too() -> None:
    bench = Bench(num_blocks=9)
    for number in range(3):
        bench.add(request(f"r{number}", [1, 2, 3, 4, 5, number], 9))
    bench.run()
    memory = bench.engine._memory
    assert memory.num_free == memory.capacity == 8
    assert memory.lookup(memory.chain(), [1, 2, 3, 4, 5, 6]), "and the cache still knows their content"
