"""The input of a request: chat messages, a text prompt, or token ids."""

from __future__ import annotations

from headrace.broker.lines.refused import Refused, invalid, missing, shown, type_name

ROLES = ("system", "developer", "user", "assistant")
_MAX_TOKEN_ID = 2**32 - 1
_TOOL_ROLES = ("tool", "function")
_TOOL_FIELDS = ("tool_calls", "function_call", "audio", "refusal")


def read_messages(value: object) -> tuple[dict[str, object], ...]:
    """Chat messages, reduced to `role` and `content`: a string, or a list of `{"type", "text"}` parts.

    `name` and fields that nobody knows are dropped (chat templates pay them no heed); tool calls, audio
    and images are refused by name.
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
    if role in _TOOL_ROLES:
        raise _unsupported(f"{where}.role", f"{role!r} is not supported yet")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    for field in _TOOL_FIELDS:
        if message.get(field) not in (None, []):
            raise _unsupported(f"{where}.{field}", "is not supported yet")
    return {"role": role, "content": _content(f"{where}.content", message.get("content"))}


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
