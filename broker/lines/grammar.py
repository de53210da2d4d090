"""What a body says an answer must look like: OpenAI's `response_format`, and vLLM's names for more.

    response_format     {"type": "json_object"} or {"type": "json_schema", "json_schema": {"schema": …}}
    guided_json, guided_regex, guided_choice, guided_grammar          one of them
    structured_outputs  {"json" | "json_object" | "regex" | "choice" | "grammar": …}       with one key

A grammar itself is read by the engine, which refuses a wrong one in its parser's words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from headrace.broker.lines.refused import Refused, invalid, missing, shown, type_name
from headrace.broker.lines.request import Grammar
from headrace.broker.lines.values import to_object, to_string

ANY_OBJECT = '{"type":"object"}'


def read_grammar(body: Mapping[str, object]) -> Grammar | None:
    """The grammar that `body` asks for; `Refused` where there is more than one, or none can be made of it."""
    asked = [name for name in _READERS if body.get(name) is not None]
    grammars = [(name, _READERS[name](name, body[name])) for name in asked]
    set_ones = [(name, grammar) for name, grammar in grammars if grammar is not None]
    if len(set_ones) > 1:
        raise invalid(set_ones[1][0], f"cannot be combined with {set_ones[0][0]}: leave one of them out")
    return set_ones[0][1] if set_ones else None


def _response_format(name: str, value: object) -> Grammar | None:
    fields = to_object(name, value)
    match fields.get("type"):
        case "text":
            return None
        case "json_object":
            return Grammar("json_schema", ANY_OBJECT, param=name)
        case "json_schema":
            inner = to_object(f"{name}.json_schema", fields.get("json_schema"))
            schema = inner.get("schema")
            return _json(f"{name}.json_schema.schema", {"type": "object"} if schema in (None, {}) else schema)
        case None:
            raise missing(f"{name}.type")
        case other:
            raise Refused("unsupported_parameter", f"{name} of type {shown(other)} is not supported", name)


def _structured_outputs(name: str, value: object) -> Grammar | None:
    asked = {key: own for key, own in to_object(name, value).items() if own is not None and own is not False}
    if len(asked) != 1:
        raise invalid(name, f"must have exactly one key, one of {', '.join(_STRUCTURED)}")
    (key, own), *_ = asked.items()
    if key not in _STRUCTURED:
        raise Refused("unsupported_parameter", f"{name}.{key} is not supported; leave it out", name)
    return _STRUCTURED[key](f"{name}.{key}", own)


def _json(name: str, value: object) -> Grammar:
    """A schema as an object, or as the text of one."""
    if isinstance(value, dict):
        source = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        return Grammar("json_schema", source, param=name)
    if not isinstance(value, str):
        raise invalid(name, f"must be an object, or the JSON of one, not {type_name(value)}")
    return Grammar("json_schema", _text(name, value), param=name)


def _any_object(name: str, value: object) -> Grammar:
    if value is not True:
        raise invalid(name, f"must be a boolean, not {type_name(value)}")
    return Grammar("json_schema", ANY_OBJECT, param=name)


def _regex(name: str, value: object) -> Grammar:
    return Grammar("regex", _text(name, value), param=name)


def _lark(name: str, value: object) -> Grammar:
    return Grammar("lark", _text(name, value), param=name)


def _choice(name: str, value: object) -> Grammar:
    choices = value if isinstance(value, list) else []
    if not choices or not all(isinstance(one, str) and one for one in choices):
        raise invalid(name, "must be a list of strings, none of them empty")
    return Grammar("choice", choices=tuple(choices), param=name)


def _text(name: str, value: object) -> str:
    text = to_string(name, value)
    if not text.strip():
        raise invalid(name, "must not be empty")
    return text


_READERS: Mapping[str, Callable[[str, object], Grammar | None]] = {
    "response_format": _response_format,
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "structured_outputs": _structured_outputs,
}
_STRUCTURED: Mapping[str, Callable[[str, object], Grammar]] = {
    "json": _json,
    "json_object": _any_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
}
