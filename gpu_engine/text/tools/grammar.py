"""Calls of tools as grammars: the model's own format around the schemas of the tools.

An answer that must be a call:              one that may be text, with calls that must be right:

    start: block                                start: (trigger block)* TEXT
    block: "<tool_call>\\n" call "\\n</tool_call>"     trigger[lazy]: TEXT "<tool_call>"
    call: call_0 | call_1
    call_0: "{\\"name\\": \\"weather\\", \\"arguments\\": " arguments_0 "}"
    arguments_0: %json {"type": "object", …}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from headrace.gpu_engine.text.tools.formats import CallFormat

# As models were taught to write it, and so that no answer can go on with spaces for ever.
_TIGHT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

# Where calls are all of an answer or none of it: what does not begin as one.
_NO_CALL = r"/([ \t\r\n]*[^ \t\r\n{<](.|\n)*)?/"


def call_grammar(
    call_format: CallFormat,
    tools: Mapping[str, Mapping[str, object]],
    *,
    parallel: bool,
    may_be_text: bool = False,
) -> str:
    """In llguidance's Lark. `tools`: schemas of the arguments by name, at least one. `parallel`: one call or
    more, in place of one. `may_be_text`: the model need not call, but calls as it must."""
    return "\n".join([*_start(call_format, parallel, may_be_text), *_calls(call_format, tools)])


def _start(style: CallFormat, parallel: bool, may_be_text: bool) -> Iterator[str]:
    repeat = f"({_text(style.between)} call)*" if parallel else ""
    begin = style.begin.removeprefix(style.trigger) if may_be_text else style.begin
    yield f"block: {_text(begin)} call {repeat} {_text(style.end)}"
    if not may_be_text:
        yield "start: block"
    elif style.trigger:
        yield "start: (trigger block)* TEXT"
        yield f"trigger[lazy]: TEXT {_text(style.trigger)}"
        yield r"TEXT: /(.|\n)*/"
    else:
        yield "start: block | TEXT"
        yield f"TEXT: {_NO_CALL}"


def _calls(style: CallFormat, tools: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    yield "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))
    for i, (name, schema) in enumerate(tools.items()):
        head = f'{{"name": {json.dumps(name)}, "{style.key}": '
        yield f"call_{i}: {_text(head)} arguments_{i} {_text('}')}"
        yield f"arguments_{i}: %json {json.dumps({**schema, 'x-guidance': _TIGHT})}"


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
