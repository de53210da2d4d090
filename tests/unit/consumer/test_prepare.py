"""What is refused before it costs anything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec import structs

from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.broker.message import Message
from headrace.consumer.failures import BROKEN_BY_US
from headrace.consumer.prepare import CHARACTERS_PER_TOKEN, MOST_SCORES, TOO_DEEP, Prepared, Preparer
from headrace.gpu_engine.api import EmbedParams, Grammar, SamplingParams
from headrace.gpu_engine.text.sim import SimTokenizer

LONGEST = 2
MOST = LONGEST * CHARACTERS_PER_TOKEN


class CountingTokenizer(SimTokenizer):
    """Knows whether it was asked."""

    asked = 0

    def encode(self, text: str) -> list[int]:
        self.asked += 1
        return super().encode(text)

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        self.asked += 1
        return super().encode_chat(messages, tools)


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    return CountingTokenizer()


@pytest.fixture
def preparer(tokenizer: CountingTokenizer) -> Iterator[Preparer]:
    preparer = Preparer(tokenizer, ["words"], max_input_length=LONGEST)
    yield preparer
    preparer.close()


def chat(*contents: object) -> Message:
    messages = [{"role": "user", "content": content} for content in contents]
    return Message(json.dumps({"messages": messages}).encode())


def completion(prompt: str | list[int], **fields: object) -> Message:
    return Message(json.dumps({"prompt": prompt, **fields}).encode())


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion("x" * (MOST + 1)), "prompt"),
        (chat("x" * (MOST // 2), "y" * (MOST // 2)), "messages"),
        (chat([{"type": "text", "text": "x" * MOST}]), "messages"),
    ],
)
async def test_a_text_that_cannot_fit_is_refused_without_tokenising_it(
    preparer: Preparer, tokenizer: CountingTokenizer, request_: Message, param: str
) -> None:
    refused = (await preparer.read(request_, [])).prepared
    assert isinstance(refused, LineError)
    assert (refused.code, refused.param) == ("context_length_exceeded", param)
    assert f"more than {LONGEST} tokens" in refused.message
    assert tokenizer.asked == 0


@pytest.mark.parametrize("request_", [completion("x" * MOST), completion([1] * (MOST + 1)), chat("hello")])
async def test_what_may_fit_is_left_for_the_engine_to_judge(preparer: Preparer, request_: Message) -> None:
    assert isinstance((await preparer.read(request_, [])).prepared, Prepared)


async def test_what_is_only_to_be_read_is_not_tokenised(
    preparer: Preparer, tokenizer: CountingTokenizer
) -> None:
    reading = await preparer.read(completion("hello"), None)
    assert isinstance(reading.parsed, ParsedRequest)
    assert (reading.prepared, tokenizer.asked) == (None, 0)


async def test_what_is_for_another_model_is_not_tokenised(
    preparer: Preparer, tokenizer: CountingTokenizer
) -> None:
    reading = await preparer.read(completion("hello", model="another"), [])
    assert isinstance(reading.parsed, ParsedRequest)
    assert (reading.parsed.model, reading.prepared, tokenizer.asked) == ("another", None, 0)


async def test_everything_that_a_user_may_set_reaches_the_engine(preparer: Preparer) -> None:
    asked: dict[str, Any] = {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.5,
        "top_k": 5,
        "min_p": 0.5,
        "stop": ["x"],
        "ignore_eos": True,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 1.5},
        "bad_words": ["x"],
        "min_tokens": 3,
        "stop_token_ids": [7],
        "include_stop_str_in_output": True,
        "logprobs": 2,
        "prompt_logprobs": 3,
        "n": 2,
        "best_of": 3,
        "skip_special_tokens": False,
        "echo": True,
        "structured_outputs": {"regex": "a+"},
    }
    reading = await preparer.read(completion("hello", **asked), [])
    assert isinstance(reading.parsed, ParsedRequest)
    assert isinstance(reading.prepared, Prepared)
    unset, default = structs.asdict(Sampling()), structs.asdict(SamplingParams())
    left_out = {
        name for name, value in structs.asdict(reading.parsed.sampling).items() if value == unset[name]
    }
    # The seed comes later.
    assert left_out == {"seed"}, "this test has to name every parameter"
    params = structs.asdict(reading.prepared.params)
    lost = {name for name in unset if params[name] == default[name]}
    assert lost == {"seed"}
    assert params["logit_bias"] == {5: 1.5}
    assert params["grammar"] == Grammar(kind="regex", source="a+", param="structured_outputs.regex")


async def test_an_echoed_prompt_is_told_with_the_answers_number_of_log_probabilities(
    preparer: Preparer,
) -> None:
    cases: list[tuple[dict[str, object], int | None]] = [
        ({"echo": True, "logprobs": 2}, 2),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 5}, 5),
        ({"logprobs": 2}, None),
        ({"echo": True}, None),
    ]
    for asked, count in cases:
        prepared = (await preparer.read(completion("hello", **asked), [])).prepared
        assert isinstance(prepared, Prepared)
        assert prepared.params.prompt_logprobs == count


async def test_more_log_probabilities_of_a_prompt_than_a_line_holds_are_refused(preparer: Preparer) -> None:
    few, many = MOST_SCORES // 2, MOST_SCORES // 2 + 1
    assert isinstance((await preparer.read(completion([1] * few, prompt_logprobs=1), [])).prepared, Prepared)
    refused = (await preparer.read(completion([1] * many, prompt_logprobs=1), [])).prepared
    assert isinstance(refused, LineError)
    assert (refused.code, refused.param) == ("invalid_request", "prompt_logprobs")


async def test_texts_to_embed_are_tokenised_and_what_cannot_fit_is_refused(preparer: Preparer) -> None:
    body = {"input": ["hi", "you"], "dimensions": 3}
    prepared = (await preparer.read(Message(json.dumps(body).encode()), [])).prepared
    assert isinstance(prepared, Prepared)
    assert (prepared.prompt_ids, prepared.embed) == (
        [104, 105],
        EmbedParams(dimensions=3, others=[[*b"you"]]),
    )
    assert (prepared.num_results, prepared.num_prompt_tokens) == (2, 5)
    long = {"input": ["hi", "x" * (MOST + 1)]}
    refused = (await preparer.read(Message(json.dumps(long).encode()), [])).prepared
    assert isinstance(refused, LineError)
    assert (refused.code, refused.param) == ("context_length_exceeded", "input")


@pytest.mark.parametrize(
    ("asked", "kept", "replayed"),
    [
        ({}, [[65, 66]], ("AB",)),
        ({"n": 3}, [[65], [], [66, 67]], ("A", "", "BC")),
        ({"n": 3}, [[], [66]], ("", "B", "")),
        ({"n": 2}, [[], []], ()),
        ({"n": 2, "best_of": 3}, [[65], [66]], ()),
    ],
)
async def test_interrupted_answers_are_replayed_each_by_itself(
    preparer: Preparer, asked: dict[str, int], kept: list[list[int]], replayed: tuple[str, ...]
) -> None:
    prepared = (await preparer.read(completion("hi", **asked), kept)).prepared
    assert isinstance(prepared, Prepared)
    assert prepared.replayed == replayed
    assert prepared.can_resume is ("best_of" not in asked)


class Panic(BaseException):
    """As native code panics."""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), Panic("in native code")])
async def test_a_request_that_trips_a_bug_fails_alone_and_is_still_known_by_its_name(
    preparer: Preparer, tokenizer: CountingTokenizer, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(text: str) -> list[int]:
        raise error

    monkeypatch.setattr(tokenizer, "encode", trip)
    reading = await preparer.read(completion("hello"), [])
    assert isinstance(reading.parsed, ParsedRequest)
    assert reading.prepared is BROKEN_BY_US


async def test_what_is_nested_too_deeply_is_no_bug_of_ours(preparer: Preparer) -> None:
    schema = b'{"type":"object","properties":' + b'{"a":' * 600 + b"1" + b"}" * 601
    tools = b'[{"type":"function","function":{"name":"f","parameters":' + schema + b"}}]"
    body = b'{"messages":[{"role":"user","content":"x"}],"tools":' + tools + b"}"
    reading = await preparer.read(Message(body), [])
    assert isinstance(reading.parsed, ParsedRequest)
    assert reading.prepared == TOO_DEEP


@pytest.mark.parametrize(
    ("asked", "tokens", "replayed"),
    [
        ({"stop_token_ids": [66]}, [65, 66], "A"),
        ({"stop_token_ids": [66], "include_stop_str_in_output": True}, [65, 66], "AB"),
        ({"stop_token_ids": [65]}, [66, 67], "BC"),
    ],
)
async def test_a_token_that_ended_an_answer_is_replayed_as_the_engine_shows_it(
    preparer: Preparer, asked: dict[str, object], tokens: list[int], replayed: str
) -> None:
    prepared = (await preparer.read(completion("hi", **asked), [tokens])).prepared
    assert isinstance(prepared, Prepared)
    assert prepared.replayed == (replayed,)


async def test_tokens_are_spelled_as_the_request_wants_texts(
    preparer: Preparer, tokenizer: CountingTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loud(SimTokenizer):
        def decode(self, token_ids: Sequence[int]) -> str:
            return "".join(f"<{token}>" for token in token_ids)

    monkeypatch.setattr(CountingTokenizer, "verbatim", Loud())
    for asked, spelled in [({}, "A"), ({"skip_special_tokens": False}, "<65>")]:
        parsed = (await preparer.read(completion("hello", **asked), None)).parsed
        assert isinstance(parsed, ParsedRequest)
        assert preparer.spelling(parsed)(65) == spelled
