from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.lines.openai import Endpoint
from headrace.broker.lines.parse import parse_message
from headrace.broker.lines.protobuf import encode_request, from_message, parse_protobuf, to_message
from headrace.broker.lines.request import Grammar, LineError, ParsedRequest, Sampling
from headrace.broker.lines.tools import Tool, Tools
from headrace.broker.message import JSON, PROTOBUF, Message
from headrace.v1 import inference_pb2 as pb

unit = st.floats(0.01, 1)
ids = st.integers(0, 2**32 - 1)
words = st.text(min_size=1, max_size=9).filter(str.strip)
samplings = st.builds(
    Sampling,
    max_tokens=st.none() | st.integers(1, 2**31 - 1),
    temperature=st.none() | st.floats(0, 2),
    top_p=st.none() | unit,
    top_k=st.none() | st.integers(0, 2**31 - 1),
    min_p=st.none() | unit,
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=16).map(tuple),
    ignore_eos=st.booleans(),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    repetition_penalty=st.none() | st.floats(0.1, 100),
    logit_bias=st.dictionaries(ids, st.floats(0.5, 100), max_size=4),
    bad_words=st.lists(words, max_size=4).map(tuple),
    min_tokens=st.none() | st.integers(0, 2**31 - 1),
    stop_token_ids=st.lists(ids, max_size=4).map(tuple),
    include_stop_str_in_output=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    grammar=st.none()
    | st.builds(Grammar, st.sampled_from(["json_schema", "regex", "lark"]), words)
    | st.lists(words, min_size=1, max_size=3).map(lambda texts: Grammar("choice", choices=tuple(texts))),
)
names = st.from_regex(r"[a-zA-Z0-9_-]{1,9}", fullmatch=True)
tool_calls = st.builds(
    lambda call_id, name: {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}},
    st.text(max_size=5),
    names,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text()})
    | st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.text(), "tool_calls": st.lists(tool_calls, min_size=1)}
    )
    | st.fixed_dictionaries(
        {"role": st.just("tool"), "content": st.text(), "tool_call_id": st.text()}, optional={"name": words}
    ),
    min_size=1,
    max_size=3,
).map(tuple)
schemas = st.dictionaries(st.sampled_from(["properties", "é"]), st.just({"a": {"type": "integer"}}))
tools = st.lists(
    st.builds(Tool, names, st.none() | st.text(max_size=5), st.none() | schemas, st.booleans()),
    min_size=1,
    max_size=3,
    unique_by=lambda tool: tool.name,
).flatmap(
    lambda offered: (
        st.builds(
            Tools,
            st.just(tuple(offered)),
            st.sampled_from(["none", "auto", "required"]),
            parallel=st.booleans(),
        )
        | st.builds(Tools, st.just(tuple(offered)), st.just("required"), st.just(offered[0].name))
    )
)
prompts = st.text() | st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5)


@st.composite
def requests(draw: st.DrawFn) -> ParsedRequest:
    chat = draw(st.booleans())
    endpoint: Endpoint = "/v1/chat/completions" if chat else "/v1/completions"
    sampling = draw(samplings)
    return ParsedRequest(
        endpoint=endpoint,
        custom_id=draw(st.none() | st.text(min_size=1, max_size=5)),
        model=draw(st.none() | st.text(min_size=1, max_size=5)),
        messages=draw(messages) if chat else None,
        prompt=None if chat else draw(prompts),
        sampling=sampling,
        tools=draw(st.none() | tools) if chat and sampling.grammar is None else None,
    )


@settings(deadline=None, max_examples=200)
@given(request=requests())
def test_a_request_survives_the_way_to_bytes_and_back(request: ParsedRequest) -> None:
    raw = encode_request(request)
    assert parse_protobuf(raw) == request
    assert encode_request(request) == raw


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=100))
def test_no_bytes_make_the_parser_raise(raw: bytes) -> None:
    assert isinstance(parse_protobuf(raw), LineError | ParsedRequest)


def test_bytes_that_are_no_message_are_unreadable() -> None:
    error = parse_protobuf(b"\xff\xff")
    assert isinstance(error, LineError)
    assert error.unreadable


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (pb.SamplingParams(max_tokens=0), "max_tokens"),
        (pb.SamplingParams(max_tokens=2**32 - 1), "max_tokens"),
        (pb.SamplingParams(temperature=math.nan), "temperature"),
        (pb.SamplingParams(temperature=math.inf), "temperature"),
        (pb.SamplingParams(top_p=0), "top_p"),
        (pb.SamplingParams(min_p=-1), "min_p"),
        (pb.SamplingParams(stop=[""]), "stop"),
    ],
)
def test_a_message_is_held_to_the_rules_of_a_line(params: pb.SamplingParams, param: str) -> None:
    error = from_message(pb.InferenceRequest(prompt="x", custom_id="a", sampling_params=params))
    assert isinstance(error, LineError)
    assert (error.code, error.param, error.custom_id) == ("invalid_request", param, "a")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (pb.InferenceRequest(), "missing_required_parameter"),
        (pb.InferenceRequest(chat=pb.Chat()), "invalid_request"),
        (pb.InferenceRequest(token_ids=pb.TokenIds()), "invalid_request"),
        (pb.InferenceRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="x")])), "invalid_request"),
    ],
)
def test_a_message_without_a_proper_input_is_refused(message: pb.InferenceRequest, code: str) -> None:
    error = from_message(message)
    assert isinstance(error, LineError)
    assert (error.code, error.unreadable) == (code, False)


@pytest.mark.parametrize("schema", ["{", "[]", '{"default": NaN}', '{"title": "\\ud800"}', "[" * 9999])
def test_a_schema_that_is_no_object_in_json_is_named(schema: str) -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user")], tools=[pb.Tool(name="a", parameters=schema)])
    error = from_message(pb.InferenceRequest(chat=chat))
    assert isinstance(error, LineError)
    assert error.param == "tools[0].function.parameters"


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat: Endpoint = "/v1/chat/completions"
    request = ParsedRequest(chat, None, None, ({"role": "user", "content": parts},), None, Sampling())
    assert to_message(request).chat.messages[0].content == "a\nb"


def test_the_content_type_decides_how_a_message_is_read() -> None:
    request = parse_message(Message(b'{"prompt": "Hi"}', content_type="Application/JSON; charset=utf-8"))
    assert isinstance(request, ParsedRequest)
    assert parse_message(Message(encode_request(request), content_type=PROTOBUF)) == request
    assert parse_message(Message(b'{"prompt": "Hi"}', content_type=JSON)) == request


def test_a_message_of_an_unknown_content_type_is_unreadable() -> None:
    error = parse_message(Message(b"{}", content_type="text/csv"))
    assert isinstance(error, LineError)
    assert error.unreadable
    assert "text/csv" in error.message


def test_a_grammar_of_no_kind_is_refused_by_name() -> None:
    message = pb.InferenceRequest(prompt="Hi", sampling_params=pb.SamplingParams(grammar=pb.Grammar()))
    error = parse_protobuf(message.SerializeToString())
    assert isinstance(error, LineError)
    assert error.param == "grammar"
