"""OpenAI batch lines, `{"custom_id", "method", "url", "body"}`, for chat completions, completions and
embeddings.

In a file all four fields are required, as in the OpenAI batch API. On a queue we are kinder, so that a
message can be written by hand: `custom_id`, `method` and `url` may be left out, and so may the wrapper
itself (`{"messages": …}` alone). What `url` is then meant shows in the body: `messages`, `prompt` or `input`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headrace.broker.lines.embeddings import parse_embedding
from headrace.broker.lines.parameters import read_sampling
from headrace.broker.lines.prompts import read_messages, read_prompt
from headrace.broker.lines.refused import Refused, invalid, missing, type_name
from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.broker.lines.strict_json import MAX_LINE_BYTES, decode_object, too_deep, too_long
from headrace.broker.lines.tools import Tools, read_tools
from headrace.broker.lines.unsupported import refuse_unsupported

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
CHAT: Endpoint = "/v1/chat/completions"
COMPLETIONS: Endpoint = "/v1/completions"
EMBEDDINGS: Endpoint = "/v1/embeddings"
MAX_CUSTOM_ID = 512
_WRAPPER = ("custom_id", "method", "url", "body")


def parse_line(
    raw: bytes, line: int | None = None, *, in_file: bool = True, max_bytes: int = MAX_LINE_BYTES
) -> ParsedRequest | LineError:
    """One line without its terminator. Never raises, whatever the bytes.

    `line` is the physical line number that an error names. `in_file` asks for the strict form (above).
    """
    try:
        if len(raw) > max_bytes:
            raise too_long(max_bytes)
        fields = decode_object(raw)
    except Refused as refused:
        return LineError(refused.code, refused.message, line=line, unreadable=True)
    try:
        return _parse_shallow(fields, in_file)
    except Refused as refused:
        return LineError(refused.code, refused.message, refused.param, _echo(fields), line)


def parse_body(endpoint: Endpoint, custom_id: str | None, body: Mapping[str, object]) -> ParsedRequest:
    """The body of an endpoint's request; raises `Refused`."""
    refuse_unsupported(endpoint, body)
    if endpoint == EMBEDDINGS:
        return parse_embedding(custom_id, _read_model(body.get("model")), body)
    sampling = read_sampling(body, is_chat=endpoint == CHAT)
    tools = read_tools(body) if endpoint == CHAT else None
    _refuse_both(sampling, tools)
    return ParsedRequest(
        endpoint=endpoint,
        custom_id=custom_id,
        model=_read_model(body.get("model")),
        messages=read_messages(body.get("messages")) if endpoint == CHAT else None,
        prompt=read_prompt(body.get("prompt")) if endpoint == COMPLETIONS else None,
        sampling=sampling,
        tools=tools,
    )


def _refuse_both(sampling: Sampling, tools: Tools | None) -> None:
    """A form for all of an answer leaves no room for calls."""
    if sampling.grammar is not None and tools is not None and tools.choice != "none":
        raise invalid(
            sampling.grammar.param, "cannot be combined with tools: leave one out, or set tool_choice to none"
        )


def _parse_shallow(fields: Mapping[str, object], in_file: bool) -> ParsedRequest:
    """What can just be decoded may be too deep to be written out again, as a schema is, or shown."""
    try:
        return _parse(fields, in_file)
    except RecursionError:
        raise too_deep() from None


def _parse(fields: Mapping[str, object], in_file: bool) -> ParsedRequest:
    custom_id = read_custom_id(fields.get("custom_id"), required=in_file)
    _check_method(fields.get("method"), required=in_file)
    body = _read_body(fields, in_file)
    return parse_body(_read_endpoint(fields.get("url"), body, required=in_file), custom_id, body)


def read_custom_id(value: object, *, required: bool) -> str | None:
    """Raises `Refused`; None where there is none and none is required."""
    if value is None and not required:
        return None
    if value is None:
        raise missing("custom_id")
    if not isinstance(value, str):
        raise invalid("custom_id", f"must be a string, not {type_name(value)}")
    if not 1 <= len(value) <= MAX_CUSTOM_ID:
        raise invalid("custom_id", f"must have 1 to {MAX_CUSTOM_ID} characters, not {len(value)}")
    return value


def _check_method(value: object, required: bool) -> None:
    if value is None and required:
        raise missing("method")
    if value not in (None, "POST"):
        raise Refused("invalid_method", 'method must be "POST"', "method")


def _read_body(fields: Mapping[str, object], in_file: bool) -> Mapping[str, object]:
    if not in_file and not any(name in fields for name in _WRAPPER):
        return fields
    body = fields.get("body")
    if body is None:
        raise missing("body")
    if not isinstance(body, dict):
        raise invalid("body", f"must be an object, not {type_name(body)}")
    return body


def _read_endpoint(url: object, body: Mapping[str, object], required: bool) -> Endpoint:
    if url is None and not required:
        return _guess_endpoint(body)
    if url is None:
        raise missing("url")
    if url == CHAT:
        return CHAT
    if url == COMPLETIONS:
        return COMPLETIONS
    if url == EMBEDDINGS:
        return EMBEDDINGS
    raise Refused("invalid_url", f"url must be {CHAT}, {COMPLETIONS} or {EMBEDDINGS}", "url")


def _guess_endpoint(body: Mapping[str, object]) -> Endpoint:
    if body.get("messages") is not None:
        return CHAT
    if body.get("prompt") is not None:
        return COMPLETIONS
    if body.get("input") is not None:
        return EMBEDDINGS
    raise missing("messages", "or prompt or input is required")


def _read_model(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or None
    raise invalid("model", f"must be a string, not {type_name(value)}")


def _echo(fields: Mapping[str, object]) -> str | None:
    """The `custom_id` for an error line: any string that can be echoed, whatever else is wrong."""
    try:
        return read_custom_id(fields.get("custom_id"), required=False)
    except Refused:
        return None
