"""Embeddings: what a body may hold, and what its answer does, field by field as in the OpenAI API."""

from __future__ import annotations

import base64
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.events import Usage
from headrace.broker.lines.embeddings import vector_json
from headrace.broker.lines.openai import parse_line
from headrace.broker.lines.output import embeddings_line
from headrace.broker.lines.request import Embedding, LineError, ParsedRequest

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=8,
)


def line(**body: object) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "m", **body}}
    return json.dumps(fields).encode()


def parsed(raw: bytes, *, in_file: bool = True) -> ParsedRequest:
    request = parse_line(raw, in_file=in_file)
    assert isinstance(request, ParsedRequest), request
    return request


def refused(raw: bytes) -> LineError:
    error = parse_line(raw)
    assert isinstance(error, LineError), error
    return error


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("Hi", ("Hi",)),
        (["Hi", ""], ("Hi", "")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_an_input_is_a_text_or_token_ids_or_several_of_one_kind(
    given: object, inputs: tuple[object, ...]
) -> None:
    request = parsed(line(input=given))
    assert (request.endpoint, request.custom_id, request.model) == ("/v1/embeddings", "a", "m")
    assert (request.messages, request.prompt) == (None, None)
    assert request.embedding == Embedding(inputs)  # type: ignore[arg-type]  # one of the kinds above


def test_on_a_queue_the_input_says_what_is_meant() -> None:
    request = parsed(b'{"input": "Hi", "encoding_format": "base64", "dimensions": 5}', in_file=False)
    assert request.embedding == Embedding(("Hi",), is_base64=True, dimensions=5)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "input"),
        ({"input": 5}, "invalid_request", "input"),
        ({"input": []}, "invalid_request", "input"),
        ({"input": [1, "a"]}, "invalid_request", "input"),
        ({"input": ["a", [1]]}, "invalid_request", "input[1]"),
        ({"input": [[1], [-1]]}, "invalid_request", "input[1]"),
        ({"input": ["a"] * 2049}, "invalid_request", "input"),
        ({"input": "a", "encoding_format": "int8"}, "invalid_request", "encoding_format"),
        ({"input": "a", "stop": "x", "seed": 1, "n": 2}, "invalid_request", "stop"),
        ({"input": "a", "dimensions": 0}, "invalid_request", "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "unsupported_parameter", "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, "unsupported_parameter", "normalize"),
        ({"input": "a", "embed_dtype": "float16"}, "unsupported_parameter", "embed_dtype"),
        ({"input": "a", "endianness": "big"}, "unsupported_parameter", "endianness"),
    ],
)
def test_what_is_wrong_is_refused_by_name(body: dict[str, object], code: str, param: str) -> None:
    error = refused(line(**body))
    assert (error.code, error.param, error.custom_id) == (code, param, "a")


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_an_answer_has_every_field_of_the_api(encoding: str) -> None:
    vectors = [[0.5, -0.25], [0.1, 1e-9]]
    raw = embeddings_line(
        parsed(line(input=["a", "b"], encoding_format=encoding)),
        result_id="batch_req_1",
        request_id="req_1",
        model="m",
        vectors=[struct.pack("<2f", *vector) for vector in vectors],
        usage=Usage(prompt_tokens=7),
    )
    told = json.loads(raw)
    body = told["response"]["body"]
    data = body.pop("data")
    assert (told["id"], told["custom_id"], told["error"]) == ("batch_req_1", "a", None)
    assert told["response"]["status_code"] == 200
    assert body == {"object": "list", "model": "m", "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    for index, (one, vector) in enumerate(zip(data, vectors, strict=True)):
        assert (one["object"], one["index"]) == ("embedding", index)
        numbers = one["embedding"]
        if encoding == "base64":
            numbers = struct.unpack("<2f", base64.b64decode(numbers))
        assert numbers == pytest.approx(vector, rel=1e-7)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=4))
def test_numbers_are_written_short_and_none_is_changed(vector: list[float]) -> None:
    raw = struct.pack(f"<{len(vector)}f", *vector)
    written = json.loads(json.dumps(vector_json(raw, is_base64=False)))
    assert struct.pack(f"<{len(vector)}f", *written) == raw


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(["input", "encoding_format", "dimensions", "model"]), JSON_VALUES))
def test_no_body_makes_the_parser_raise(body: dict[str, object]) -> None:
    request = parse_line(line(**body))
    assert isinstance(request, LineError | ParsedRequest)
    assert request.custom_id == "a"
