"""Tools of a chat: `tools`, `tool_choice`, `parallel_tool_calls`, and the calls in an answer, as in the
OpenAI API.

    tools        [{"type": "function", "function": {"name", "description", "parameters", "strict"}}, …]
    tool_choice  "none" | "auto" | "required" | {"type": "function", "function": {"name"}}

Functions are the only tools there are. Without `parameters` one takes none.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headrace.broker.lines.refused import invalid, missing, shown, type_name, unsupported
from headrace.broker.lines.values import to_boolean, to_object, to_string

MAX_TOOLS = 128
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

Choice = Literal["none", "auto", "required"]

_ID_LENGTH = 9  # letters and digits: what the templates of Mistral's models take, and no other
_ALPHABET = string.digits + string.ascii_letters


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call. `parameters`: JSON schema of its arguments. `strict`: they follow
    it, also where the model was free not to call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    strict: bool = False


class Tools(msgspec.Struct, frozen=True):
    """`choice`: whether the model may, or must, call one; `only`: the one that it must call, if not any.
    `parallel`: several calls in an answer."""

    offered: tuple[Tool, ...]
    choice: Choice = "auto"
    only: str | None = None
    parallel: bool = True


class ToolCall(msgspec.Struct, frozen=True):
    """`arguments`: a JSON object, as the model wrote it."""

    name: str
    arguments: str


def read_tools(body: Mapping[str, object]) -> Tools | None:
    """The tools that `body` offers; None where there are none. Raises `Refused`."""
    offered = _offered(body.get("tools"))
    choice, only = _choice(body.get("tool_choice"))
    parallel = to_boolean("parallel_tool_calls", body.get("parallel_tool_calls"))
    if not offered:
        if choice == "required":
            raise invalid("tool_choice", "needs tools to choose from")
        return None
    if only is not None and only not in {tool.name for tool in offered}:
        raise invalid("tool_choice", f"names {only}, which is none of the tools")
    return Tools(offered, choice, only, parallel is not False)


def tool_fields(tools: Sequence[Tool]) -> list[dict[str, object]]:
    """The tools as a chat template is given them."""
    return [{"type": "function", "function": _function_fields(tool)} for tool in tools]


def call_fields(call: ToolCall, request_id: str, index: int, choice: int = 0) -> dict[str, object]:
    """A call as it stands in a message. Its id depends on its place alone, so that whoever makes the answer's
    line, and however often, gives it the same."""
    place = hashlib.blake2b(f"{request_id}/{choice}/{index}".encode()).digest()
    name = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in place[:_ID_LENGTH])
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _offered(value: object) -> tuple[Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise invalid("tools", f"must be a list, not {type_name(value)}")
    if len(value) > MAX_TOOLS:
        raise invalid("tools", f"may hold at most {MAX_TOOLS} tools, not {len(value)}")
    tools = tuple(_tool(f"tools[{i}]", tool) for i, tool in enumerate(value))
    names = [tool.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise invalid(f"tools[{i}].function.name", f"is that of another tool: {name}")
    return tools


def _tool(where: str, value: object) -> Tool:
    fields = to_object(where, value)
    if fields.get("type") != "function":
        raise unsupported(f"{where}.type", 'must be "function"')
    where = f"{where}.function"
    function = to_object(where, fields.get("function"))
    description = function.get("description")
    if description is not None:
        description = to_string(f"{where}.description", description)
    strict = to_boolean(f"{where}.strict", function.get("strict"))
    name = _name(f"{where}.name", function.get("name"))
    parameters = _parameters(f"{where}.parameters", function.get("parameters"))
    return Tool(name, description, parameters, bool(strict))


def _parameters(where: str, value: object) -> Mapping[str, object] | None:
    if value is None:
        return None
    schema = to_object(where, value)
    if schema.get("type", "object") != "object":
        raise invalid(f"{where}.type", 'must be "object": arguments have names')
    return schema


def _name(where: str, value: object) -> str:
    if value is None:
        raise missing(where)
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise invalid(where, f"must be 1 to 64 letters, digits, '_' and '-', not {shown(value)}")
    return value


def _choice(value: object) -> tuple[Choice, str | None]:
    match value:
        case None:
            return "auto", None
        case "none" | "auto" | "required":
            return value, None
        case str():
            raise invalid("tool_choice", f"must be none, auto, required or a function, not {shown(value)}")
    fields = to_object("tool_choice", value)
    if fields.get("type") != "function":
        raise unsupported("tool_choice.type", 'must be "function"')
    function = to_object("tool_choice.function", fields.get("function"))
    return "required", _name("tool_choice.function.name", function.get("name"))


def _function_fields(tool: Tool) -> dict[str, object]:
    fields: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        fields["description"] = tool.description
    if tool.parameters is not None:
        fields["parameters"] = tool.parameters
    return fields
