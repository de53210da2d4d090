"""The answers to one request: what an engine tells of them, from where the log stands."""

from __future__ import annotations

import pytest

from headrace.broker.events import Delta
from headrace.broker.events import TokenLogprobs as LoggedScore
from headrace.broker.fold import Fold
from headrace.consumer.answers import Answer, Answers, answers_in
from headrace.gpu_engine.api import Output, TokenLogprobs


def last(index: int = 0, reason: str = "stop", cached: int = 0) -> Output:
    return Output(id="k", index=index, finish_reason=reason, cached_tokens=cached)


@pytest.mark.parametrize(
    ("in_log", "replayed", "lacking", "told", "shown"),
    [
        ("abc", "abc", "", ["d"], ["d"]),
        ("ab", "abc", "c", ["d"], ["d"]),
        ("abcde", "abc", "", ["d", "ef"], ["", "f"]),
        ("abc", "", "", ["abcd"], ["d"]),
    ],
)
def test_an_answer_goes_on_where_its_text_in_the_log_ends(
    in_log: str, replayed: str, lacking: str, told: list[str], shown: list[str]
) -> None:
    answer = Answer(pieces=[in_log])
    assert answer.square(replayed) == lacking
    assert [answer.take(Output(id="k", text=text)).text for text in told] == shown
    assert answer.text == in_log + lacking + "".join(shown)


def test_scores_of_the_prompt_are_kept_with_the_tokens_and_forgotten_with_them() -> None:
    for keeps in (True, False):
        answers = Answers([Answer([1])], [LoggedScore(7, -1.0)])
        answers.begin(2, keeps=keeps)
        assert answers.token_ids() == ([[1], []] if keeps else [[], []])
        assert answers.prompt_logprobs == ([LoggedScore(7, -1.0)] if keeps else [])


def test_scores_are_taken_as_the_log_holds_them() -> None:
    answers = Answers()
    fresh = answers.take(
        Output(
            id="k",
            token_ids=[5],
            logprobs=[TokenLogprobs(5, -0.5)],
            prompt_logprobs=[TokenLogprobs(7, -1.0)],
        )
    )
    assert answers[0].logprobs == fresh.logprobs == [LoggedScore(5, -0.5)]
    assert answers.prompt_logprobs == fresh.prompt_logprobs == [LoggedScore(7, -1.0)]


def test_they_end_one_by_one() -> None:
    answers = Answers()
    answers.begin(2, keeps=False)
    assert (answers.others_are_open, answers.all_ended) == (True, False)
    answers.end(last(1, "length"))
    assert (answers.others_are_open, answers.all_ended) == (False, False)
    answers.end(last(0))
    assert (answers.others_are_open, answers.all_ended) == (False, True)
    assert answers.reasons() == ("stop", "length")


def test_a_prompt_that_answers_share_is_found_in_the_cache_once() -> None:
    answers = Answers()
    answers.begin(2, keeps=False)
    for index, cached in enumerate((3, 4)):
        answers.take(last(index, cached=cached))
    assert answers.cached_tokens(one_prompt=True) == 3
    assert answers.cached_tokens(one_prompt=False) == 7


def test_what_the_log_holds_is_copied() -> None:
    log = Fold()
    log.read(Delta(0, 0, (1,), "a", 1))
    answers = answers_in(log)
    answers.take(Output(id="k", index=1, token_ids=[2], text="b"))
    assert [answer.text for answer in answers] == ["", "ab"]
    assert log.answers[1].token_ids == [1]
