"""The input of a request: chat messages, a text prompt, or token ids."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.lines.refused import invalid, missing, shown, type_name, unsupported
from headrace.broker.lines.values import object_in_json, to_object, to_string, to_token_ids

ROLES = ("system", "developer", "user", "assistant", "tool")
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
    return to_token_ids("prompt", value)


def _message(where: str, message: object) -> dict[str, object]:
    if not isinstance(message, dict):
        raise invalid(where, f"must be an object, not {type_name(message)}")
    role = message.get("role")
    if role == "function":
        raise unsupported(f"{where}.role", "'function' is not supported; use 'tool'")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    for field in _REFUSED_FIELDS:
        if message.get(field) not in (None, []):
            raise unsupported(f"{where}.{field}", "is not supported yet")
    calls = _calls(f"{where}.tool_calls", role, message.get("tool_calls"))
    content = message.get("content")
    if content is None and calls:
        content = ""
    read: dict[str, object] = {"role": role, "content": _content(f"{where}.content", content)}
    if calls:
        read["tool_calls"] = calls
    return read | _answered(where, message) if role == "tool" else read


def _answered(where: str, message: Mapping[str, object]) -> dict[str, str]:
    """Which call the result of a tool belongs to."""
    fields = {"tool_call_id": to_string(f"{where}.tool_call_id", message.get("tool_call_id"))}
    name = message.get("name")
    return fields if name is None else fields | {"name": to_string(f"{where}.name", name)}


def _calls(where: str, role: object, value: object) -> list[dict[str, object]]:
    if value is None or value == []:
        return []
    if role != "assistant":
        raise invalid(where, "are an assistant's only")
    if not isinstance(value, list):
        raise invalid(where, f"must be a list, not {type_name(value)}")
    return [_call(f"{where}[{i}]", call) for i, call in enumerate(value)]


def _call(where: str, value: object) -> dict[str, object]:
    call = to_object(where, value)
    if call.get("type", "function") != "function":
        raise unsupported(f"{where}.type", 'must be "function"')
    function = to_object(f"{where}.function", call.get("function"))
    name = to_string(f"{where}.function.name", function.get("name"))
    arguments = to_string(f"{where}.function.arguments", function.get("arguments"))
    object_in_json(f"{where}.function.arguments", arguments)
    return {
        "id": to_string(f"{where}.id", call.get("id")),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


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
        raise unsupported(where, f"is of type {shown(part['type'])}; only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text", f"must be a string, not {type_name(text)}")
    return text


def _only_text(prompts: list[object]) -> str:
    if len(prompts) == 1 and isinstance(prompts[0], str):
        return prompts[0]
    raise invalid("prompt", "may hold one text only; write one line for each prompt")
