"""Tools from a body to the engine, and from what the engine says to result lines and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.broker.contract import Done
from headrace.broker.lines.openai import parse_line
from headrace.broker.lines.request import LineError, ParsedRequest
from headrace.broker.message import Message
from headrace.consumer.inflight import InFlight
from headrace.consumer.prepare import Prepared, Preparer
from headrace.consumer.results import result_line, settlement
from headrace.gpu_engine.api import Output
from headrace.gpu_engine.text.sim import SimTokenizer
from headrace.gpu_engine.text.tools.calls import CallParser, Item
from headrace.gpu_engine.text.tools.formats import HERMES, CallFormat
from tests.unit.consumer.test_chunks import Topic, acknowledge, begin, publish

WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
CLOCK = {"name": "clock"}
TOOLS = [{"type": "function", "function": each} for each in (WEATHER, CLOCK)]
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


class ToolTokenizer(SimTokenizer):
    """Knows what its template was given."""

    call_format: CallFormat | None = HERMES
    told: Sequence[Mapping[str, object]] | None = None

    def encode_chat(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] = ()
    ) -> list[int]:
        self.told = tools
        return super().encode_chat(messages)


@pytest.fixture
def tokenizer() -> ToolTokenizer:
    return ToolTokenizer()


@pytest.fixture
def preparer(tokenizer: ToolTokenizer) -> Iterator[Preparer]:
    preparer = Preparer(tokenizer, ["words"], max_input_length=100)
    yield preparer
    preparer.close()


def chat(**fields: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS, **fields}
    return json.dumps(body).encode()


def parsed(**fields: Any) -> ParsedRequest:
    request = parse_line(chat(**fields), in_file=False)
    assert isinstance(request, ParsedRequest)
    return request


# ---------------------------------------------------------------------------------------- to the engine


async def prepared(preparer: Preparer, **fields: Any) -> Prepared | LineError:
    reading = (await preparer.read(Message(chat(**fields)), [])).prepared
    assert reading is not None
    return reading


async def test_a_template_is_told_of_the_tools_as_they_were_given(
    preparer: Preparer, tokenizer: ToolTokenizer
) -> None:
    reading = await prepared(preparer)
    assert isinstance(reading, Prepared)
    assert tokenizer.told == TOOLS
    assert reading.params.grammar is None
    assert reading.call_format is HERMES


async def test_tools_that_may_not_be_called_are_not_told_of(
    preparer: Preparer, tokenizer: ToolTokenizer
) -> None:
    reading = await prepared(preparer, tool_choice="none")
    assert isinstance(reading, Prepared)
    assert reading.call_format is None
    assert tokenizer.told == ()


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"tool_choice": "required"}, [0, 1]),
        ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, [1]),
        ({"tools": [{"type": "function", "function": {**CLOCK, "strict": True}}]}, [0]),
    ],
)
async def test_an_answer_that_must_be_a_call_or_call_rightly_has_a_grammar(
    preparer: Preparer, fields: dict[str, Any], parts: list[int]
) -> None:
    reading = await prepared(preparer, **fields)
    assert isinstance(reading, Prepared)
    grammar = reading.params.grammar
    assert grammar is not None
    assert grammar.param == "tools"
    assert [name for name, _ in grammar.parts] == [f"tools[{i}].function.parameters" for i in parts]
    assert ("TEXT" in grammar.source) == ("tools" in fields), "it may be text where it is free"


async def test_tools_for_a_model_that_knows_none_are_refused_by_name(
    preparer: Preparer, tokenizer: ToolTokenizer
) -> None:
    tokenizer.call_format = None
    refused = await prepared(preparer)
    assert isinstance(refused, LineError)
    assert (refused.code, refused.param) == ("unsupported_parameter", "tools")
    assert isinstance(await prepared(preparer, tool_choice="none"), Prepared)


async def test_tools_count_among_what_is_too_long_to_be_tokenised(preparer: Preparer) -> None:
    long = {"type": "function", "function": {"name": "f", "description": "x" * 60_000}}
    refused = await prepared(preparer, tools=[long])
    assert isinstance(refused, LineError)
    assert refused.code == "context_length_exceeded"
    assert isinstance(await prepared(preparer, tools=[long], tool_choice="none"), Prepared)


# ------------------------------------------------------------------------------------- from the engine


def serve(topic: Topic, request: ParsedRequest, *, keeps: bool = True) -> InFlight:
    flight = begin(topic, keeps=keeps)
    assert flight.prepared is not None
    flight.parsed = request
    flight.prepared = structs.replace(flight.prepared, call_format=HERMES)
    return flight


def say(topic: Topic, flight: InFlight, text: str) -> None:
    flight.received(Output(id="k", token_ids=[1], text=text), 0.0)
    publish(topic, flight)
    acknowledge(flight)


def result(flight: InFlight, reason: str = "stop") -> dict[str, Any]:
    flight.received(Output(id="k", finish_reason=reason), 0.0)
    terminal = flight.terminal()
    assert terminal is not None
    done = settlement(flight, result_line(flight, terminal, "m", 1, str))
    assert isinstance(done, Done)
    assert done.line is not None
    choice = json.loads(done.line)["response"]["body"]["choices"][0]
    assert isinstance(choice, dict)
    return choice


def answer(text: str, reason: str = "stop", **fields: Any) -> dict[str, Any]:
    topic = Topic()
    flight = serve(topic, parsed(**fields))
    say(topic, flight, text)
    return result(flight, reason)


def test_an_answer_that_calls_has_the_calls_in_the_place_of_its_text() -> None:
    choice = answer(f"{OSLO}\n{NOW}")
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"] is None
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Oslo"}'},
        {"name": "clock", "arguments": "{}"},
    ]
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(len(name) == 9 and name.isalnum() for name in ids)
    assert answer(f"{OSLO}\n{NOW}") == choice, "ids are the same however often the line is made"


def test_text_beside_a_call_is_kept() -> None:
    assert answer(f"Let me see.\n{OSLO}")["message"]["content"] == "Let me see."


def test_an_answer_without_a_call_looks_as_without_tools() -> None:
    choice = answer("Sunny. ")
    assert choice["message"] == {"role": "assistant", "content": "Sunny. ", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_an_answer_that_is_cut_short_says_so() -> None:
    assert answer(OSLO[:30], "length")["message"]["content"] == OSLO[:30]
    assert answer(f"{OSLO}\n{NOW[:20]}", "length")["finish_reason"] == "length"


def test_only_one_call_is_told_where_one_was_asked_for() -> None:
    assert len(answer(f"{OSLO}{NOW}", parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_what_looks_like_a_call_is_text_where_none_may_be_made() -> None:
    assert answer(OSLO, tool_choice="none")["message"]["content"] == OSLO


class ToolReader:
    """The rule of `chunk_line`'s docstring, and nothing else."""

    def __init__(self) -> None:
        self.text = ""
        self.calls: list[dict[str, Any]] = []
        self._highest = (0, -1)

    def read(self, line: bytes) -> None:
        chunk = json.loads(line)
        if (chunk["epoch"], chunk["seq"]) > self._highest:
            self._highest = (chunk["epoch"], chunk["seq"])
            delta = chunk["choices"][0]["delta"]
            self.text = self.text[: chunk["offset"]] + delta.get("content", "")
            self.calls = self.calls[: chunk["call_offset"]] + delta.get("tool_calls", [])


def test_a_stream_shows_text_at_once_and_a_call_when_it_is_whole() -> None:
    topic = Topic()
    flight = serve(topic, parsed())
    for text in ("Let me", " see.\n<tool_", OSLO[6:40], OSLO[40:], "\n"):
        say(topic, flight, text)
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in topic.chunks]
    assert deltas[:2] == [{"role": "assistant", "content": "Let me"}, {"content": " see."}]
    [call] = deltas[2].pop("tool_calls")
    assert (deltas[2], len(deltas)) == ({}, 3)
    assert (call["index"], call["function"]["name"]) == (0, "weather")


def test_a_stream_with_tools_costs_what_is_new_however_long_the_answer_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is read in the event loop, beside the streams of others."""
    looked_at, feed = 0, CallParser.feed

    def counting(parser: CallParser, text: str) -> list[Item]:
        nonlocal looked_at
        looked_at += len(text)
        return feed(parser, text)

    monkeypatch.setattr(CallParser, "feed", counting)
    topic = Topic()
    flight = serve(topic, parsed())
    for _ in range(200):
        say(topic, flight, NOW)
    assert looked_at <= 2 * 200 * len(NOW)


pieces = st.lists(st.sampled_from(["Hm. ", OSLO, NOW, "<tool_call>", "{", "\n", "é"]), max_size=5)


@settings(deadline=None, max_examples=80)
@given(parts=pieces, step=st.integers(1, 30), takes_over=st.sets(st.integers(0, 40)), keeps=st.booleans())
def test_whoever_takes_over_shows_no_call_twice_and_a_stream_ends_as_its_result(
    parts: list[str], step: int, takes_over: set[int], keeps: bool
) -> None:
    topic, request, text = Topic(), parsed(), "".join(parts)
    flight = serve(topic, request)
    place = 0
    number = 0
    while place < len(text):
        say(topic, flight, text[place : place + step])
        place += step
        number += 1
        if number in takes_over:
            flight = serve(topic, request, keeps=keeps)
            place = place if keeps else 0
    message = result(flight)["message"]
    reader = ToolReader()
    for chunk in topic.chunks:
        reader.read(chunk)
    assert (message["content"] or "").startswith(reader.text), "the end that was held back is in the result"
    told = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", []))]
    assert reader.calls == told[: len(reader.calls)]
    assert len(told) - len(reader.calls) <= 1
