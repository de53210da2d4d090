"""How an answer ends where the request says more than max_tokens, and what of its end is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.gpu_engine.api import EngineRequest
from tests.unit.engine.fakes import VOCAB, Answer, Bench, LetterTokenizer, expected_tokens, request

PLAIN = request("r", 5, 20)
TOKENS = expected_tokens(PLAIN, 1_000)
TEXT = LetterTokenizer().decode(TOKENS)


def having(**params: Any) -> EngineRequest:
    return msgspec.structs.replace(PLAIN, params=msgspec.structs.replace(PLAIN.params, **params))


def answer_to(one: EngineRequest) -> Answer:
    bench = Bench()
    bench.add(one)
    return bench.run()[one.id]


def reason_of(answer: Answer) -> str | None:
    assert answer.last is not None
    return answer.last.finish_reason


def test_a_stop_token_ends_the_answer_and_is_not_shown_even_if_the_end_token_is_ignored() -> None:
    place = next(i for i in range(3, 20) if TOKENS[i] not in TOKENS[:i])
    answer = answer_to(having(stop_token_ids=(TOKENS[place],), ignore_eos=True))
    assert answer.token_ids == TOKENS[: place + 1]
    assert answer.text == TEXT[:place]
    assert reason_of(answer) == "stop"


def test_the_token_that_ends_an_answer_is_shown_where_the_request_says_so() -> None:
    place = next(i for i in range(3, 20) if TOKENS[i] not in TOKENS[:i])
    answer = answer_to(having(stop_token_ids=(TOKENS[place],), include_stop_str_in_output=True))
    assert answer.text == TEXT[: place + 1]


def test_a_stop_string_is_shown_where_the_request_says_so() -> None:
    stop = TEXT[6:8]
    end = TEXT.index(stop)
    assert answer_to(having(stop=(stop,))).text == TEXT[:end]
    assert answer_to(having(stop=(stop,), include_stop_str_in_output=True)).text == TEXT[: end + 2]


@pytest.mark.parametrize("least", [0, 4, 5, 6, 7])
def test_a_stop_string_counts_only_where_all_of_it_comes_after_min_tokens(least: int) -> None:
    stop = TEXT[5:7]
    places = [i for i in range(least, 19) if TEXT[i : i + 2] == stop]
    answer = answer_to(having(stop=(stop,), min_tokens=least))
    assert answer.text == (TEXT[: places[0]] if places else TEXT)


def test_an_echoed_prompt_stands_before_the_answer_once() -> None:
    prompt = LetterTokenizer().decode(PLAIN.prompt_ids)
    bench = Bench()
    bench.add(having(echo=True))
    texts = [output.text for _ in range(30) if bench.engine.has_work for output in bench.step()]
    assert "".join(texts) == prompt + TEXT
    assert texts[0] == prompt + TEXT[0]


def test_an_echo_is_not_repeated_where_an_answer_goes_on() -> None:
    resumed = msgspec.structs.replace(having(echo=True), output_ids=TOKENS[:7])
    assert answer_to(resumed).text == TEXT[7:]


def test_an_echo_of_an_answer_that_ends_at_once_is_still_shown() -> None:
    prompt = LetterTokenizer().decode(PLAIN.prompt_ids)
    answer = answer_to(having(echo=True, stop_token_ids=(TOKENS[0],)))
    assert (answer.text, reason_of(answer)) == (prompt, "stop")


def test_a_resumed_answer_that_ended_with_a_stop_token_only_lacks_its_last_output() -> None:
    resumed = msgspec.structs.replace(having(stop_token_ids=(TOKENS[2],)), output_ids=TOKENS[:3])
    answer = answer_to(resumed)
    assert (answer.token_ids, answer.text, reason_of(answer)) == ([], "", "stop")


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 21}, "min_tokens"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"stop_token_ids": (1,) * 129}, "stop_token_ids"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: 101.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"bad_words": ("a", " ")}, "bad_words"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"n": 2}, "n"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(asked: dict[str, Any], param: str) -> None:
    bench = Bench()
    error = bench.engine.add(having(**asked))
    assert error is not None
    assert (error.code, error.param) == ("invalid_request", param)
    assert not bench.engine.has_work
