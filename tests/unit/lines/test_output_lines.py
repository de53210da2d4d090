from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.events import Failed, Usage
from headrace.broker.lines.openai import Endpoint
from headrace.broker.lines.output import (
    Choice,
    chunk_line,
    failure_line,
    numbered,
    result_id,
    success_line,
)
from headrace.broker.lines.request import LineError, ParsedRequest, Sampling

USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=3)
USAGE_FIELDS = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
CHAT: Endpoint = "/v1/chat/completions"
COMPLETIONS: Endpoint = "/v1/completions"


def request_for(endpoint: Endpoint, custom_id: str | None = "a") -> ParsedRequest:
    return ParsedRequest(endpoint, custom_id, "m", None, None, Sampling())


def success(request: ParsedRequest, text: str = "Hello", reason: str = "stop") -> bytes:
    return success_line(
        request,
        result_id=result_id("req_1"),
        request_id="req_1",
        model="m",
        choices=[Choice(text, reason)],
        usage=USAGE,
        created=1_700_000_000,
    )


def failure(failed: Failed | LineError, custom_id: str | None = "a", partial: str = "") -> bytes:
    return failure_line(
        custom_id, result_id="batch_req_1", request_id="req_1", failed=failed, partial=partial
    )


def test_a_chat_answer_has_every_field_of_the_api() -> None:
    assert json.loads(success(request_for(CHAT))) == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "req_1",
            "body": {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1_700_000_000,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": "Hello", "refusal": None},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": USAGE_FIELDS,
                "system_fingerprint": None,
            },
        },
        "error": None,
    }


def test_a_completion_answer_has_every_field_of_the_api() -> None:
    body = json.loads(success(request_for(COMPLETIONS), reason="length"))["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["id"] == "cmpl-1"
    assert body["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "length"}]


def chunk(endpoint: Endpoint, offset: int, content: str = "lo") -> bytes:
    return chunk_line(
        request_for(endpoint),
        request_id="req_1",
        model="m",
        created=1_700_000_000,
        epoch=2,
        seq=7,
        offset=offset,
        content=content,
    )


def test_a_chunk_of_a_chat_is_one_of_the_api_and_says_where_it_stands() -> None:
    assert json.loads(chunk(CHAT, 3)) == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "lo"}, "logprobs": None, "finish_reason": None}],
        "system_fingerprint": None,
        "custom_id": "a",
        "request_id": "req_1",
        "epoch": 2,
        "seq": 7,
        "offset": 3,
    }
    first = json.loads(chunk(CHAT, 0))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": "lo"}


def test_a_chunk_of_a_completion_is_one_of_the_api() -> None:
    fields = json.loads(chunk(COMPLETIONS, 3))
    assert (fields["id"], fields["object"]) == ("cmpl-1", "text_completion")
    assert fields["choices"] == [{"index": 0, "text": "lo", "logprobs": None, "finish_reason": None}]


def test_a_chunk_is_one_line_and_no_result_line() -> None:
    raw = chunk(CHAT, 0, "a\u2028b\u0085c\n")
    assert len(raw.decode().splitlines()) == 1
    assert "response" not in json.loads(raw)


def test_a_failure_of_an_http_class_stands_in_the_response() -> None:
    line = json.loads(failure(Failed(1, "context_length_exceeded", "too long", 400, "messages")))
    assert line == {
        "id": "batch_req_1",
        "custom_id": "a",
        "response": {
            "status_code": 400,
            "request_id": "req_1",
            "body": {
                "error": {
                    "message": "too long",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            },
        },
        "error": None,
    }


def test_a_server_failure_says_so_in_its_type() -> None:
    line = json.loads(failure(Failed(1, "internal_error", "oops", 500)))
    error = line["response"]["body"]["error"]
    assert (error["type"], error["param"]) == ("server_error", None)


def test_a_cancelled_request_has_an_error_and_no_response_but_its_partial_text() -> None:
    line = json.loads(failure(Failed(1, "cancelled", "on request", usage=USAGE), partial="Hel"))
    assert line["response"] is None
    assert line["error"] == {
        "code": "cancelled",
        "message": "on request",
        "partial": "Hel",
        "usage": USAGE_FIELDS,
    }


def test_an_invalid_line_is_a_bad_request_with_its_line_number() -> None:
    line = json.loads(failure(LineError("invalid_url", "url is wrong", "url", "a", 12)))
    assert line["response"]["status_code"] == 400
    assert line["response"]["body"]["error"] == {
        "message": "line 12: url is wrong",
        "type": "invalid_request_error",
        "param": "url",
        "code": "invalid_url",
        "line": 12,
    }


@pytest.mark.parametrize("status", [0, 400, 503])
def test_a_failure_that_a_consumer_wrote_takes_the_number_of_its_line(status: int) -> None:
    told = json.loads(failure(Failed(1, "code", "why\u2028", status, usage=USAGE), partial="Hel\u0085"))
    raw = numbered(failure(Failed(1, "code", "why\u2028", status, usage=USAGE), partial="Hel\u0085"), 7)
    assert len(raw.decode().splitlines()) == 1
    line = json.loads(raw)
    error = line["error"] or line["response"]["body"]["error"]
    assert (error.pop("line"), error["message"]) == (7, "line 7: why\u2028")
    error["message"] = "why\u2028"
    assert line == told


def test_a_line_that_has_its_number_keeps_it() -> None:
    raw = failure(LineError("invalid_url", "url is wrong", "url", "a", 12))
    assert numbered(raw, 13) == raw


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"\xff", b"[]", b"{}", b"[" * 9999, b'{"error":null,"response":null}'),
        *(b'{"error":5}', b'{"error":"sad"}', b'{"error":["sad"]}'),
    ],
)
def test_what_is_no_failure_is_not_numbered(raw: bytes) -> None:
    assert numbered(raw, 7) == raw
    answer = success(request_for(CHAT))
    assert numbered(answer, 7) == answer


def test_a_request_without_custom_id_is_named_by_its_ids() -> None:
    line = json.loads(failure(LineError("invalid_json_line", "no JSON", line=3), custom_id=None))
    assert (line["custom_id"], line["id"]) == (None, "batch_req_1")


def test_a_result_id_is_made_from_the_request_id() -> None:
    assert result_id("req_abc") == "batch_req_abc"
    assert result_id("stream/1-0") == "batch_req_stream/1-0"


def test_japanese_is_not_escaped() -> None:
    assert "日本".encode() in success(request_for(CHAT), "日本")


def test_text_that_cannot_be_encoded_is_replaced_not_crashed_on() -> None:
    line = json.loads(failure(Failed(1, "internal_error", "file \udcff", 500)))
    assert line["response"]["body"]["error"]["message"] == "file ?"


separators = st.sampled_from(
    ["\x85", "\u2028", "\u2029", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x1e", '"', "\\"]
)
texts = st.lists(separators | st.text(max_size=3), max_size=8).map("".join)


@settings(deadline=None, max_examples=300)
@given(custom_id=texts, text=texts, chat=st.booleans())
def test_an_answer_is_one_line_for_every_reader(custom_id: str, text: str, chat: bool) -> None:
    raw = success(request_for(CHAT if chat else COMPLETIONS, custom_id), text)
    assert len(raw.decode().splitlines()) == 1
    line = json.loads(raw)
    choice = line["response"]["body"]["choices"][0]
    assert line["custom_id"] == custom_id
    assert (choice["message"]["content"] if chat else choice["text"]) == text


@settings(deadline=None, max_examples=200)
@given(custom_id=texts, message=texts, partial=texts, status=st.sampled_from([0, 400, 404, 429, 500]))
def test_a_failure_is_one_line_for_every_reader(
    custom_id: str, message: str, partial: str, status: int
) -> None:
    raw = failure(Failed(1, "code", message, status), custom_id, partial)
    assert len(raw.decode().splitlines()) == 1
    line = json.loads(raw)
    error = line["response"]["body"]["error"] if status else line["error"]
    assert (line["custom_id"], error["message"], error.get("partial", "")) == (custom_id, message, partial)
