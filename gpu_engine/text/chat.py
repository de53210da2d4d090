"""Messages and text of a user, checked before a tokenizer or a template sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from headrace.gpu_engine.text.contract import TextError


def check_text(text: str) -> str:
    """The text itself; TextError for a lone surrogate, which is half of a UTF-16 pair and no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(
            f"The text holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is no character; send valid Unicode."
        ) from error
    return text


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The messages with their content as plain text, as chat templates expect it.

    `content` is a string or a list of parts `{"type": "text", "text": …}`; the texts of several parts are
    joined by line breaks, as vLLM does. A message with `tool_calls` may lack it; their `arguments` are JSON,
    and templates want the object. Other keys are left to the template. Raises TextError.
    """
    if not messages:
        raise TextError("The conversation is empty; send at least one message.")
    return [_plain_message(index, message) for index, message in enumerate(messages)]


def _plain_message(index: int, message: Mapping[str, object]) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise TextError(f"Message {index} is no object; send one with `role` and `content`.")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise TextError(f"Message {index} has no `role`; send one such as `user`.")
    content, calls = message.get("content"), message.get("tool_calls")
    if not calls:
        return {**message, "role": check_text(role), "content": _plain_content(index, content)}
    return {
        **message,
        "role": check_text(role),
        "content": "" if content is None else _plain_content(index, content),
        "tool_calls": _plain_calls(index, calls),
    }


def _plain_calls(index: int, calls: object) -> list[dict[str, object]]:
    try:
        return [_plain_call(call) for call in _list(calls)]
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise TextError(
            f"The `tool_calls` of message {index} are no list of calls of functions, with `arguments` that "
            "are a JSON object."
        ) from error


def _plain_call(call: Mapping[str, object]) -> dict[str, object]:
    function = _object(_object(call)["function"])
    arguments = function["arguments"]
    arguments = json.loads(check_text(arguments)) if isinstance(arguments, str) else arguments
    return {**call, "function": {**function, "arguments": _object(arguments)}}


def _list(value: object) -> Sequence[Mapping[str, object]]:
    if isinstance(value, list | tuple):
        return value
    raise TypeError("no list")


def _object(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    raise TypeError("no object")


def _plain_content(index: int, content: object) -> str:
    if isinstance(content, str):
        return check_text(content)
    if isinstance(content, list | tuple) and content:
        return "\n".join([_part_text(index, part) for part in content])
    raise TextError(f"The `content` of message {index} is neither a string nor a list of text parts.")


def _part_text(index: int, part: object) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return check_text(str(part["text"]))
    raise TextError(f"Message {index} holds a part that is no text; only parts of type `text` are supported.")
