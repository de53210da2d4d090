"""A model that has to call a tool calls one, in its own format, with arguments of the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.sampling.guide import GrammarError
from headrace.gpu_engine.sampling.known import KnownTokens
from headrace.gpu_engine.text.tools.calls import Reply, read_reply
from headrace.gpu_engine.text.tools.formats import FORMATS, CallFormat
from headrace.gpu_engine.text.tools.grammar import call_grammar
from tests.unit.sampling.test_grammars import BACKEND, MAKER, answer_under, text_of

TOOLS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "Rome"]},
            "days": {"type": "integer", "maximum": 9, "minimum": 0},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "clock": {"type": "object", "properties": {}, "additionalProperties": False},
}
ARGUMENTS = {"weather": '{"city": "Oslo", "days": 3}', "clock": "{}", "other": "{}"}
every_format = pytest.mark.parametrize("call_format", FORMATS.values(), ids=lambda one: one.name)


def grammar_of(call_format: CallFormat, *, parallel: bool = False, may_be_text: bool = False) -> Grammar:
    source = call_grammar(call_format, TOOLS, parallel=parallel, may_be_text=may_be_text)
    return Grammar(kind="lark", source=source)


def read(call_format: CallFormat, text: str) -> Reply:
    return read_reply(call_format.scanner(TOOLS), text)


def check(reply: Reply) -> None:
    for call in reply.calls:
        arguments = json.loads(call.arguments)
        assert set(arguments) == set(TOOLS[call.name]["properties"])
        assert call.name == "clock" or (arguments["city"] in ("Oslo", "Rome") and 0 <= arguments["days"] <= 9)


def written(call_format: CallFormat, calls: Sequence[str]) -> str:
    """As a model of this format writes calls of these tools."""
    each = [f'{{"name": "{call}", "{call_format.key}": {ARGUMENTS[call]}}}' for call in calls]
    return call_format.begin + call_format.between.join(each) + call_format.end


def lets_through(grammar: Grammar, text: str) -> bool:
    """As the beginning of an answer."""
    try:
        MAKER.make(grammar, KnownTokens(BACKEND.encode(text).ids, 0))
    except GrammarError:
        return False
    return True


@every_format
def test_a_model_that_must_call_does_so_whatever_it_would_rather_say(call_format: CallFormat) -> None:
    for seed in range(2):
        reply = read(call_format, text_of(answer_under(grammar_of(call_format), seed)))
        assert (reply.text, len(reply.calls)) == ("", 1)
        check(reply)


@every_format
def test_it_may_call_any_tool_and_more_than_once_only_where_that_is_allowed(call_format: CallFormat) -> None:
    one, several = grammar_of(call_format), grammar_of(call_format, parallel=True)
    for name in TOOLS:
        assert lets_through(one, written(call_format, [name]))
    both = written(call_format, ["clock", "weather", "clock"])
    assert lets_through(several, both)
    assert not lets_through(one, both)
    for grammar in (one, several):
        assert not lets_through(grammar, "Let me see.")
        assert not lets_through(grammar, written(call_format, ["other"]))


@every_format
def test_a_model_that_may_answer_by_text_calls_rightly_or_not_at_all(call_format: CallFormat) -> None:
    grammar = grammar_of(call_format, may_be_text=True)
    before = "Let me see. " if call_format.trigger else ""
    call = before + written(call_format, ["weather"])
    assert lets_through(grammar, "It is < 12 o'clock; {so} what? [TOOL_")
    assert lets_through(grammar, call)
    assert not lets_through(grammar, call.replace("Oslo", "Paris"))
    assert not lets_through(grammar, call.replace('"days": 3', '"days": "3"'))
    assert not lets_through(grammar, before + written(call_format, ["other"]))
    assert lets_through(grammar, f"{call}\nThat was it.") == bool(call_format.trigger)
