"""The input of a request: chat messages, a text prompt, or token ids."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.broker.lines.refused import Refused, invalid, missing, shown, type_name

ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_TOKEN_ID = 2**32 - 1
_REFUSED_FIELDS = ("function_call", "audio", "refusal")


def read_messages(value: object) -> tuple[dict[str, object], ...]:
    """Chat messages, reduced to `role` and `content`: a string, or a list of `{"type", "text"}` parts.

    One of an assistant may have `tool_calls`, `{"id", "type", "function": {"name", "arguments"}}` each, and
    no content then; one of the role `tool` names the call that it answers by `tool_call_id`, and may have the
    function's `name`. Fields that nobody knows are dropped, and so is the `name` of others (chat templates
    pay them no heed); audio and images are refused by name.
    """
    if value is None:
        raise missing("messages")
    if not isinstance(value, list):
        raise invalid("messages", f"must be a list, not {type_name(value)}")
    if not value:
        raise invalid("messages", "must hold at least one message")
    return tuple(_message(f"messages[{i}]", message) for i, message in enumerate(value))


def read_prompt(value: object) -> str | list[int]:
    """A text, a list of token ids, or a list that holds exactly one text."""
    if value is None:
        raise missing("prompt")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid("prompt", f"must be a string or a list of token ids, not {type_name(value)}")
    if not value:
        raise invalid("prompt", "must not be empty")
    if isinstance(value[0], str):
        return _only_text(value)
    return _token_ids(value)


def _message(where: str, message: object) -> dict[str, object]:
    if not isinstance(message, dict):
        raise invalid(where, f"must be an object, not {type_name(message)}")
    role = message.get("role")
    if role == "function":
        raise _unsupported(f"{where}.role", "'function' is not supported; use 'tool'")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    for field in _REFUSED_FIELDS:
        if message.get(field) not in (None, []):
            raise _unsupported(f"{where}.{field}", "is not supported yet")
    calls = _calls(f"{where}.tool_calls", role, message.get("tool_calls"))
    content = message.get("content")
    if content is None and calls:
        content = ""
    read: dict[str, object] = {"role": role, "content": _content(f"{where}.content", content)}
    if calls:
        read["tool_calls"] = calls
    return read | _answered(where, message) if role == "tool" else read


def _answered(where: str, message: Mapping[str, object]) -> dict[str, object]:
    """Which call the result of a tool belongs to."""
    call_id, name = message.get("tool_call_id"), message.get("name")
    if call_id is None:
        raise missing(f"{where}.tool_call_id")
    fields: dict[str, object] = {"tool_call_id": _string(f"{where}.tool_call_id", call_id)}
    return fields if name is None else fields | {"name": _string(f"{where}.name", name)}


def _calls(where: str, role: object, value: object) -> list[dict[str, object]]:
    if value is None or value == []:
        return []
    if role != "assistant":
        raise invalid(where, "are an assistant's only")
    if not isinstance(value, list):
        raise invalid(where, f"must be a list, not {type_name(value)}")
    return [_call(f"{where}[{i}]", call) for i, call in enumerate(value)]


def _call(where: str, value: object) -> dict[str, object]:
    call = _object(where, value)
    if call.get("type", "function") != "function":
        raise _unsupported(f"{where}.type", 'must be "function"')
    function = _object(f"{where}.function", call.get("function"))
    name = _string(f"{where}.function.name", function.get("name"))
    arguments = _string(f"{where}.function.arguments", function.get("arguments"))
    if not _is_object(arguments):
        raise invalid(f"{where}.function.arguments", "must be the JSON of an object")
    return {
        "id": _string(f"{where}.id", call.get("id")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False


def _object(where: str, value: object) -> Mapping[str, object]:
    if value is None:
        raise missing(where)
    if not isinstance(value, dict):
        raise invalid(where, f"must be an object, not {type_name(value)}")
    return value


def _string(where: str, value: object) -> str:
    if value is None:
        raise missing(where)
    if not isinstance(value, str):
        raise invalid(where, f"must be a string, not {type_name(value)}")
    return value


def _content(where: str, content: object) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    if content is None:
        raise missing(where)
    if not isinstance(content, list) or not content:
        raise invalid(where, "must be a string or a non-empty list of text parts")
    return [{"type": "text", "text": _text(f"{where}[{i}]", part)} for i, part in enumerate(content)]


def _text(where: str, part: object) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise invalid(where, 'must be an object with a "type"')
    if part["type"] != "text":
        raise _unsupported(where, f"is of type {shown(part['type'])}; only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text", f"must be a string, not {type_name(text)}")
    return text


def _only_text(prompts: list[object]) -> str:
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0]
    raise invalid("prompt", "may hold one text only; write one line for each prompt")


def _token_ids(ids: list[object]) -> list[int]:
    checked = [i for i in ids if type(i) is int and 0 <= i <= _MAX_TOKEN_ID]
    if len(checked) != len(ids):
        raise invalid("prompt", "must hold token ids only: integers from 0")
    return checked


def _unsupported(param: str, message: str) -> Refused:
    return Refused("unsupported_parameter", f"{param} {message}", param)
