"""Tools of a request: what they make the engine do, and the calls in what it answers.

The log of a request holds the tokens and the text as the model wrote them, its calls among it. Calls are
looked for only where something is shown: in a result line, and in the chunks of a stream. What is found
depends on the text so far alone, so an owner that takes the request over, with that text from the log, finds
the calls that were shown, and shows none of them twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.broker.lines.request import ParsedRequest
from headrace.broker.lines.tools import Tool, ToolCall, Tools
from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.text.tools.calls import CallParser, Reply, reply_of
from headrace.gpu_engine.text.tools.formats import CallFormat
from headrace.gpu_engine.text.tools.grammar import call_grammar


def offered_tools(parsed: ParsedRequest) -> Tools | None:
    """The tools that the model is to know of: none where it may not call any."""
    return None if parsed.tools is None or parsed.tools.choice == "none" else parsed.tools


def tool_grammar(tools: Tools, call_format: CallFormat) -> Grammar | None:
    """What an answer must look like: where the model has to call a tool, and where a tool is `strict`."""
    may_be_text = tools.choice == "auto"
    if may_be_text and not any(tool.strict for tool in tools.offered):
        return None
    chosen = {i: tool for i, tool in enumerate(tools.offered) if tools.only in (None, tool.name)}
    schemas = {tool.name: _schema(tool) for tool in chosen.values()}
    return Grammar(
        kind="lark",
        source=call_grammar(call_format, schemas, parallel=tools.parallel, may_be_text=may_be_text),
        param="tools",
        parts=tuple(
            (f"tools[{i}].function.parameters", json.dumps(schemas[tool.name])) for i, tool in chosen.items()
        ),
    )


def read_answer(
    parsed: ParsedRequest, call_format: CallFormat | None, text: str, *, ended: bool = True
) -> Reply:
    """What of `text` is text, and which calls are in it. `call_format`: None where there are no tools."""
    parser = _parser(parsed, call_format)
    if parser is None:
        return Reply(text, ())
    return reply_of(parser.feed(text) + (parser.end() if ended else []))


class AnswerReader:
    """Reads an answer as it grows, and finds what `read_answer` finds in all of it so far; a piece costs what
    is new, however long the answer is. `num_read`: its characters that were read; `num_shown`, `num_calls`:
    what is certain of them."""

    def __init__(self, parsed: ParsedRequest, call_format: CallFormat | None) -> None:
        self._parser = _parser(parsed, call_format)
        self.num_read = self.num_shown = self.num_calls = 0

    def read(self, text: str) -> Reply:
        """What the next piece of it makes certain."""
        reply = Reply(text, ()) if self._parser is None else reply_of(self._parser.feed(text))
        self.num_read += len(text)
        self.num_shown += len(reply.text)
        self.num_calls += len(reply.calls)
        return reply


def calls_in(reply: Reply) -> list[ToolCall]:
    """In terms of lines."""
    return [ToolCall(call.name, call.arguments) for call in reply.calls]


def _parser(parsed: ParsedRequest, call_format: CallFormat | None) -> CallParser | None:
    tools = offered_tools(parsed)
    if tools is None or call_format is None:
        return None
    scanner = call_format.scanner({tool.name for tool in tools.offered})
    return CallParser(scanner, None if tools.parallel else 1)


def _schema(tool: Tool) -> Mapping[str, Any]:
    """Of an object, whatever else is said of it."""
    nothing = {"properties": {}, "additionalProperties": False}
    return {"type": "object", **(nothing if tool.parameters is None else tool.parameters)}
