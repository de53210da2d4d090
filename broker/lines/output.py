"""Result lines, field by field as in the OpenAI batch API, and the chunks of a stream on a reply topic.

    {"id", "custom_id", "response": {"status_code", "request_id", "body"} | null, "error": {…} | null}

An answer, and a failure that has an HTTP class, stand in `response`; `error` is null then. A request that
was cancelled, expired or lost has no response, and `error` is set. To both kinds of error we add what a
reader may want to keep: `line` (physical number in the input file), `partial` (the text so far) and
`usage` (tokens spent on it).

Lines are compact JSON without a newline. U+0085, U+2028 and U+2029 are escaped, since readers that use
`str.splitlines` would cut a line there; other text is not, since escaping doubles Japanese.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from headrace.broker.events import Failed, TokenLogprobs, Usage
from headrace.broker.ids import PREFIX as REQUEST_PREFIX
from headrace.broker.lines.embeddings import vector_json
from headrace.broker.lines.logprobs import Prompt, Spell, chat_logprobs, prompt_logprobs, text_logprobs
from headrace.broker.lines.openai import CHAT
from headrace.broker.lines.request import LineError, ParsedRequest
from headrace.broker.lines.tools import ToolCall, call_fields

Json: TypeAlias = Mapping[str, object]

RESULT_PREFIX = "batch_req_"
BAD_REQUEST = 400

_SEPARATORS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def result_id(request_id: str) -> str:
    """The `id` of a request's result line: `batch_req_` in the place of `req_`. Opaque to readers, but
    whoever made the request id knows its line by it."""
    return RESULT_PREFIX + request_id.removeprefix(REQUEST_PREFIX)


class Choice(NamedTuple):
    """One of the answers of a result line."""

    text: str
    finish_reason: str
    logprobs: Sequence[TokenLogprobs] = ()
    calls: Sequence[ToolCall] = ()


def success_line(
    request: ParsedRequest,
    *,
    result_id: str,
    request_id: str,
    model: str,
    choices: Sequence[Choice],
    usage: Usage,
    created: int,
    prompt: Prompt | None = None,
    spell: Spell = str,
) -> bytes:
    """The line of an answer, or of several. `created`: unix time in seconds; `prompt`: with its log
    probabilities, where they are asked for; `spell`: the text of a token."""
    chat = request.endpoint == CHAT
    told = [
        _chat_choice(request_id, index, choice, spell)
        if chat
        else _completion_choice(request, index, choice, prompt, spell)
        for index, choice in enumerate(choices)
    ]
    body: dict[str, object] = {
        "id": ("chatcmpl-" if chat else "cmpl-") + request_id.removeprefix(REQUEST_PREFIX),
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": told,
        "usage": usage_fields(usage),
        "system_fingerprint": None,
    }
    if prompt is not None and (count := request.sampling.prompt_logprobs) is not None:
        (body if chat else told[0])["prompt_logprobs"] = prompt_logprobs(prompt, count, spell)
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return _line(result_id, request.custom_id, response, None)


def embeddings_line(
    request: ParsedRequest,
    *,
    result_id: str,
    request_id: str,
    model: str,
    vectors: Sequence[bytes],
    usage: Usage,
) -> bytes:
    """The line of vectors, each little-endian float32, in the order of the inputs."""
    assert request.embedding is not None
    is_base64 = request.embedding.is_base64
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector_json(vector, is_base64=is_base64)}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens},
    }
    response = {"status_code": 200, "request_id": request_id, "body": body}
    return _line(result_id, request.custom_id, response, None)


def chunk_line(
    request: ParsedRequest,
    *,
    request_id: str,
    model: str,
    created: int,
    epoch: int,
    seq: int,
    offset: int,
    content: str,
    choice: int = 0,
    call_offset: int = 0,
    calls: Sequence[ToolCall] = (),
) -> bytes:
    """A part of an answer, for a reply topic whose request asks for a stream: a chunk of the OpenAI API

        {"id", "object": "chat.completion.chunk", "created", "model", "system_fingerprint",
         "choices": [{"index", "delta": {"content"}, "logprobs", "finish_reason": null}],
         "custom_id", "request_id", "epoch", "seq", "offset"}

    (`text_completion` has `text` in the place of `delta`; `logprobs` is null, the result line has them all),
    with five fields of ours. `offset` counts the
    characters (Unicode code points) of the answer before this chunk. A reader ignores a chunk whose
    (`epoch`, `seq`) is not above the highest so far of its `index`, and otherwise does

        text[index] = text[index][:offset] + content

    That is right however often chunks are repeated, whoever takes the request over, and if the answer has to
    begin anew. The result line, which has no `object`, ends the stream and holds the whole answer.

    Of a chat with tools there is a sixth field, `call_offset`, the calls of the answer before this chunk. The
    `delta` may have `tool_calls` then, each of them whole, and no `content`:

        calls[index] = calls[index][:call_offset] + tool_calls

    Text that may become a call is in no chunk before that is known, and then in the chunk of the call, or as
    text.
    """
    chat = request.endpoint == CHAT
    placed = [
        {"index": i, **call_fields(call, request_id, i, choice)} for i, call in enumerate(calls, call_offset)
    ]
    return _encode(
        {
            "id": ("chatcmpl-" if chat else "cmpl-") + request_id.removeprefix(REQUEST_PREFIX),
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
            "choices": [
                _chat_delta(choice, content, placed, is_first=offset + call_offset == 0)
                if chat
                else _text_choice(choice, content, None)
            ],
            "system_fingerprint": None,
            "custom_id": request.custom_id,
            "request_id": request_id,
            "epoch": epoch,
            "seq": seq,
            "offset": offset,
            **({"call_offset": call_offset} if request.tools is not None else {}),
        }
    )


def failure_line(
    custom_id: str | None,
    *,
    result_id: str,
    request_id: str,
    failed: Failed | LineError,
    partial: str = "",
) -> bytes:
    """The line of a failure. `partial`: the text that was generated before it, if any."""
    if isinstance(failed, LineError):
        error = _http_error(BAD_REQUEST, failed.code, failed.message, failed.param)
        if failed.line is not None:
            _number(error, failed.line)
        return _line(result_id, custom_id, _error_response(BAD_REQUEST, request_id, error), None)
    if failed.status:
        error = _http_error(failed.status, failed.code, failed.message, failed.param or None)
        error |= _spent(failed, partial)
        return _line(result_id, custom_id, _error_response(failed.status, request_id, error), None)
    error = {"code": failed.code, "message": failed.message, **_spent(failed, partial)}
    return _line(result_id, custom_id, None, error)


def numbered(raw: bytes, line: int) -> bytes:
    """A failure's line, as a consumer wrote it, with the number of its request's line in the input file,
    which only the reader of that file knows. What is no such line is returned as it is."""
    try:
        fields = msgspec.json.decode(raw)
        error = fields["error"] or fields["response"]["body"]["error"]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return raw
    if not isinstance(error, dict) or "line" in error:
        return raw
    _number(error, line)
    return _encode(fields)


def usage_fields(usage: Usage) -> dict[str, object]:
    """Usage in the terms of the OpenAI API."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _chat_choice(request_id: str, index: int, choice: Choice, spell: Spell) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
    reason = choice.finish_reason
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            call_fields(call, request_id, place, index) for place, call in enumerate(choice.calls)
        ]
        reason = "tool_calls" if reason == "stop" else reason
    logprobs = chat_logprobs(choice.logprobs, spell)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def _completion_choice(
    request: ParsedRequest, index: int, choice: Choice, prompt: Prompt | None, spell: Spell
) -> dict[str, object]:
    fields = _text_choice(index, choice.text, choice.finish_reason)
    sampling = request.sampling
    echoed = prompt if sampling.echo and sampling.logprobs is not None else None
    fields["logprobs"] = text_logprobs(choice.logprobs, spell, echoed, sampling.logprobs or 0)
    return fields


def _chat_delta(index: int, content: str, calls: Sequence[Json], *, is_first: bool) -> dict[str, object]:
    """The role stands in the first one, as in the API."""
    delta: dict[str, object] = {"role": "assistant"} if is_first else {}
    if content or not calls:
        delta["content"] = content
    if calls:
        delta["tool_calls"] = calls
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _text_choice(index: int, text: str, finish_reason: str | None) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _number(error: dict[str, object], line: int) -> None:
    error["message"] = f"line {line}: {error.get('message')}"
    error["line"] = line


def _http_error(status: int, code: str, message: str, param: str | None) -> dict[str, object]:
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"message": message, "type": kind, "param": param, "code": code}


def _spent(failed: Failed, partial: str) -> dict[str, object]:
    spent: dict[str, object] = {"partial": partial} if partial else {}
    if failed.usage != Usage():
        spent["usage"] = usage_fields(failed.usage)
    return spent


def _error_response(status: int, request_id: str, error: Json) -> Json:
    return {"status_code": status, "request_id": request_id, "body": {"error": error}}


def _line(result_id: str, custom_id: str | None, response: Json | None, error: Json | None) -> bytes:
    return _encode({"id": result_id, "custom_id": custom_id, "response": response, "error": error})


def _encode(fields: Json) -> bytes:
    try:
        raw = msgspec.json.encode(fields)
    except UnicodeEncodeError:  # half a surrogate pair, as in the name of a file that is not UTF-8
        raw = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    for separator, escape in _SEPARATORS:
        raw = raw.replace(separator, escape)
    return raw
