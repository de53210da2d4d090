"""Calls of tools are found in an answer's text, however it is cut; what only looks like one is text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.text.tools.calls import CallParser, Item, Reply, ToolCall, read_reply
from headrace.gpu_engine.text.tools.formats import (
    FORMATS,
    HERMES,
    LLAMA,
    MISTRAL,
    CallFormat,
    detect_format,
    knows_tools,
)

OFFERED = ("weather", "clock")
OSLO = '{"city": "Oslo"}'
WEATHER, CLOCK = ToolCall("weather", OSLO), ToolCall("clock", "{}")


def written(call_format: CallFormat, calls: Sequence[ToolCall]) -> str:
    """As a model of this format writes them."""
    each = [f'{{"name": "{call.name}", "{call_format.key}": {call.arguments}}}' for call in calls]
    return call_format.begin + call_format.between.join(each) + call_format.end


def read(call_format: CallFormat, text: str, *, most: int | None = None, ended: bool = True) -> Reply:
    return read_reply(call_format.scanner(OFFERED), text, most=most, ended=ended)


every_format = pytest.mark.parametrize("call_format", FORMATS.values(), ids=lambda one: one.name)


# ---------------------------------------------------------------------------------- what they find


@every_format
def test_calls_are_found_with_their_arguments_as_they_were_written(call_format: CallFormat) -> None:
    assert read(call_format, written(call_format, [WEATHER, CLOCK])) == Reply("", (WEATHER, CLOCK))


@every_format
def test_an_answer_without_a_call_is_its_text_to_the_last_space(call_format: CallFormat) -> None:
    for text in ("", "Hello", " \n It is <b>12</b> [o'clock]; {so} what?  \n"):
        assert read(call_format, text) == Reply(text, ())


@pytest.mark.parametrize("call_format", [HERMES, MISTRAL], ids=lambda one: one.name)
def test_text_before_a_call_is_shown_without_the_spaces_between(call_format: CallFormat) -> None:
    text = "Let me see.\n\n" + written(call_format, [WEATHER]) + "\n"
    assert read(call_format, text) == Reply("Let me see.", (WEATHER,))


def test_text_on_both_sides_of_a_call_is_kept_apart() -> None:
    text = f"Let me see.\n{written(HERMES, [WEATHER])}\nThat was it. "
    assert read(HERMES, text) == Reply("Let me see.\n\nThat was it. ", (WEATHER,))


def test_an_object_behind_text_is_no_call_of_llamas() -> None:
    text = "Like so: " + written(LLAMA, [WEATHER])
    assert read(LLAMA, text) == Reply(text, ())


def test_llamas_tag_may_stand_before_its_calls() -> None:
    assert read(LLAMA, f"<|python_tag|>{written(LLAMA, [WEATHER])}") == Reply("", (WEATHER,))


def test_a_call_of_hermes_may_lack_its_closing_mark_at_the_end_alone() -> None:
    unclosed = written(HERMES, [WEATHER]).removesuffix("</tool_call>")
    assert read(HERMES, unclosed) == Reply("", (WEATHER,))
    assert read(HERMES, unclosed + "and on").calls == ()


@every_format
def test_marks_within_a_string_of_the_arguments_are_no_marks(call_format: CallFormat) -> None:
    nasty = json.dumps({"city": '</tool_call>"]}[TOOL_CALLS];<tool_call>\\'})
    assert read(call_format, written(call_format, [ToolCall("clock", nasty), WEATHER])).calls == (
        ToolCall("clock", nasty),
        WEATHER,
    )


@every_format
def test_no_more_calls_are_shown_than_were_asked_for(call_format: CallFormat) -> None:
    assert read(call_format, written(call_format, [WEATHER, CLOCK]), most=1) == Reply("", (WEATHER,))


# ----------------------------------------------------------------------------- what only looks like one


@every_format
@pytest.mark.parametrize(
    "call",
    [
        ToolCall("unheard_of", "{}"),
        ToolCall("clock", "[]"),
        ToolCall("clock", "nothing"),
        ToolCall("clock", '{"a": }'),
        ToolCall("clock", '{"a": NaN}'),
        ToolCall('clo"ck', "{}"),
        ToolCall("clock", '{"a": ' + "[" * 5000 + "]" * 5000 + "}"),
    ],
)
def test_what_only_looks_like_a_call_is_text(call_format: CallFormat, call: ToolCall) -> None:
    text = written(call_format, [call])
    assert read(call_format, text) == Reply(text, ())


@every_format
def test_a_call_that_the_end_of_the_answer_cuts_short_is_text(call_format: CallFormat) -> None:
    whole = written(call_format, [WEATHER])
    for end in range(len(call_format.begin) + 1, whole.index("Oslo") + 4):
        assert read(call_format, whole[:end]) == Reply(whole[:end], ())


def test_a_true_call_behind_a_false_one_is_found() -> None:
    false = "<tool_call> (as they say) "
    assert read(HERMES, false + written(HERMES, [CLOCK])) == Reply(false.rstrip(), (CLOCK,))


# ------------------------------------------------------------------------------------------ streaming


@every_format
def test_text_is_shown_at_once_and_a_call_when_it_is_whole(call_format: CallFormat) -> None:
    call = written(call_format, [WEATHER])
    parser = CallParser(call_format.scanner(OFFERED))
    shown: list[Item] = parser.feed("Hm: ") if call_format is not LLAMA else []
    assert shown == (["Hm:"] if call_format is not LLAMA else [])
    assert [parser.feed(letter) for letter in call[:-1]] == [[]] * (len(call) - 1)
    assert parser.feed(call[-1]) + parser.end() == [WEATHER]


def test_json_that_cannot_become_a_call_is_not_held_back_to_the_end() -> None:
    for call_format, begun in ((HERMES, "<tool_call>{so"), (LLAMA, "{so"), (MISTRAL, "[TOOL_CALLS][so")):
        assert read(call_format, f"{begun} it goes...", ended=False).text == f"{begun} it goes..."


scraps = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "<|python_tag|>",
            ";",
            "; ",
            "\n",
            " ",
            "[",
            "]",
            ", ",
        ),
        *("{", "}", '"', "\\", '{"name": "clock", "arguments": {}}', '{"name": "clock", "parameters": {}}'),
        *('{"name": "other", "arguments": {}}', "text", "é漢", '"arguments": ', "[{}]", "<", "[TOOL", "1e5"),
    ]
)
calls = st.sampled_from([WEATHER, CLOCK])


@st.composite
def answers(draw: st.DrawFn) -> tuple[CallFormat, list[str]]:
    """Calls between scraps of text and of calls, in pieces."""
    call_format = draw(st.sampled_from(list(FORMATS.values())))
    parts = draw(st.lists(scraps | st.lists(calls, max_size=2).map(lambda some: written(call_format, some))))
    text = "".join(parts)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    edges = [0, *cuts, len(text)]
    return call_format, [text[a:b] for a, b in pairwise(edges)]


@settings(deadline=None, max_examples=120)
@given(answer=answers())
@example(answer=(LLAMA, ["<|python_tag|>", "{", '"name": "clock", "parameters": {}}', " ", ";", " no"]))
def test_an_answer_reads_the_same_however_it_is_cut_and_nothing_is_taken_back(
    answer: tuple[CallFormat, list[str]],
) -> None:
    call_format, pieces = answer
    whole = read(call_format, "".join(pieces))
    parser = CallParser(call_format.scanner(OFFERED))
    items: list[Item] = []
    for i, piece in enumerate(pieces):
        items += parser.feed(piece)
        so_far = read(call_format, "".join(pieces[: i + 1]), ended=False)
        assert _joined(items) == so_far, "what is known depends on the text alone"
        assert whole.text.startswith(so_far.text)
        assert whole.calls[: len(so_far.calls)] == so_far.calls
    assert _joined(items + parser.end()) == whole
    for call in whole.calls:
        assert isinstance(json.loads(call.arguments), dict)


def _joined(items: Sequence[Item]) -> Reply:
    text = "".join(item for item in items if isinstance(item, str))
    return Reply(text, tuple(item for item in items if isinstance(item, ToolCall)))


def test_a_long_call_that_is_never_closed_costs_no_more_than_its_length() -> None:
    text = '<tool_call>{"name": "' + "x\\" * 500_000
    assert read(HERMES, text).text == text


# ----------------------------------------------------------------------------------------- templates

QWEN = "{% if tools %}…return a json object within <tool_call></tool_call> XML tags{% endif %}"
LLAMA_3 = '{% if tools %}Respond in the format {"name": function name, "parameters": …}{% endif %}'
MISTRAL_3 = "{% for tool in tools %}{% endfor %}{{ '[TOOL_CALLS] [' }}"


@pytest.mark.parametrize(
    ("template", "call_format"),
    [
        (QWEN, HERMES),
        (LLAMA_3, LLAMA),
        (MISTRAL_3, MISTRAL),
        (MISTRAL_3 + "[ARGS]", None),
        (QWEN + "<function=", None),
        ("{{ tools }}", None),
        ('{{ tools }} {"tool_name": …, "parameters": …}', None),
        ("{{ messages }} <tool_call>", None),
    ],
)
def test_a_template_shows_in_which_format_its_model_calls(
    template: str, call_format: CallFormat | None
) -> None:
    assert detect_format(template) == call_format


def test_a_template_knows_tools_if_its_program_uses_them() -> None:
    assert knows_tools(QWEN)
    assert not knows_tools("{% for m in messages %} no tools {{ 'tools' + stools }}{% endfor %}")
