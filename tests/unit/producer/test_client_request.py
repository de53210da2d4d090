"""What callers write: taken as it is meant or refused with a sentence, and none of it dropped in silence."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.broker.message import Lane
from headrace.producer import client
from headrace.producer.client import InvalidRequest, RequestOptions, Sampling
from headrace.producer.client_request import collect, inference_request
from headrace.v1 import inference_pb2 as pb


def request(prompt: Any = "Hi", **options: Any) -> pb.InferenceRequest:
    given: Any = options
    return inference_request(prompt, given)


def test_sampling_may_be_a_dict_of_its_fields() -> None:
    fields = {"max_tokens": 5, "temperature": 0, "stop": "x", "logit_bias": {7: 2.0}, "seed": 3}
    sampling = Sampling(max_tokens=5, temperature=0, stop=("x",), logit_bias={7: 2.0}, seed=3)
    by_dict, by_struct = request(sampling=fields), request(sampling=sampling)
    assert by_dict.sampling_params == by_struct.sampling_params
    assert request(sampling={"stop": ["a", "b"]}).sampling_params.stop == ["a", "b"]


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        ({"max_tokenz": 5}, "there is no sampling parameter 'max_tokenz'; there are .*max_tokens"),
        ({5: 5}, "there is no sampling parameter 5"),
        ({"max_tokens": "many"}, "sampling makes no sense: Expected `int .*max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        (5, "sampling takes a Sampling or a dict such as {'max_tokens': 5}, not int"),
        (None, "sampling takes a Sampling or a dict .*, not NoneType"),
    ],
)
def test_sampling_that_makes_no_sense_is_a_sentence(sampling: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        request(sampling=sampling)


def test_a_prompt_is_a_text_token_ids_or_messages() -> None:
    assert request("Hi").prompt == "Hi"
    assert request([1, 2]).token_ids.ids == [1, 2]
    assert request(({"role": "user", "content": "Hi"},)).chat.messages[0].content == "Hi"


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        (5, "of the type int"),
        (None, "of the type NoneType"),
        (b"Hi", "of the type bytes"),
        ({"role": "user", "content": "Hi"}, "of the type dict"),
        ([1, "two"], "a list of int, str"),
        ([True], "a list of bool"),
        ([{"role": "user", "content": "Hi"}, "and"], "a list of dict, str"),
    ],
)
def test_a_prompt_that_is_none_of_these_is_told_what_it_is(prompt: Any, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"a prompt is a text, .*; this is {kind}$"):
        request(prompt)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lane": "fast"}, "'fast' is no lane; use one of interactive, "),
        ({"lane": None}, "'None' is no lane"),
        ({"request_id": 5}, "a request id is a text, not int"),
        ({"timeout_s": math.inf}, "timeout_s must be a number of seconds up to 315360000, not inf"),
        ({"timeout_s": math.nan}, "timeout_s must be .*, not nan"),
        ({"timeout_s": "5"}, "timeout_s must be .*, not '5'"),
        ({"queue_timeout_s": 0}, "queue_timeout_s must be a number of seconds above 0 and up to .*, not 0"),
        ({"queue_timeout_s": 1e300}, "queue_timeout_s must be .* up to 315360000, not 1e"),
        ({"model": 5}, "the request cannot be sent"),
    ],
)
def test_an_option_that_makes_no_sense_is_a_sentence(options: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        request(**options)


def test_a_lane_may_be_written_as_a_text() -> None:
    assert request(lane="batch").lane == request(lane=Lane.BATCH).lane == pb.LANE_BATCH


def test_all_that_a_caller_needs_has_one_place() -> None:
    assert {"Client", "Sampling", "Lane", "Completion", "RetryPolicy", "RequestFailed"} <= set(client.__all__)
    assert all(hasattr(client, name) for name in client.__all__)
    errors = {
        name for name, each in vars(client).items() if isinstance(each, type) and issubclass(each, Exception)
    }
    assert errors <= set(client.__all__)
    assert set(RequestOptions.__optional_keys__) == {
        *("model", "sampling", "lane", "custom_id", "request_id", "timeout_s", "queue_timeout_s")
    }


async def test_several_answers_are_collected_each_by_itself() -> None:
    async def events() -> AsyncIterator[pb.StreamEvent]:
        for choice, text in [(0, "x"), (2, "y")]:
            yield pb.StreamEvent(delta=pb.StreamDelta(choice=choice, text=text, token_ids=[1]))
        yield pb.StreamEvent(restarted=pb.StreamRestarted())
        for choice, text in [(0, "a"), (2, "c"), (0, "b")]:
            yield pb.StreamEvent(delta=pb.StreamDelta(choice=choice, text=text, token_ids=[ord(text)]))
        ends = ["stop", "stop", "length"]
        yield pb.StreamEvent(request_id="r", finished=pb.StreamFinished(reason="stop", reasons=ends))

    first = await collect(events())
    told = [(one.text, one.token_ids, one.finish_reason) for one in (first, *first.others)]
    assert told == [("ab", (97, 98), "stop"), ("", (), "stop"), ("c", (99,), "length")]
    assert first.request_id == "r"


def test_a_number_of_answers_travels_with_the_request() -> None:
    params = request(sampling={"n": 2, "best_of": 3, "prompt_logprobs": 1, "skip_special_tokens": False})
    asked = params.sampling_params
    assert (asked.n, asked.best_of, asked.prompt_logprobs) == (2, 3, 1)
    assert asked.HasField("skip_special_tokens")
    with pytest.raises(InvalidRequest, match="best_of must be at least n"):
        request(sampling={"n": 2, "best_of": 1})
