from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from headrace.broker.lines.openai import parse_line
from headrace.broker.lines.request import Grammar, LineError, ParsedRequest, Sampling
from headrace.broker.lines.tools import Tool, Tools

USER = [{"role": "user", "content": "Hello"}]


def chat(body: dict[str, Any] | None = None, /, **wrapper: Any) -> bytes:
    fields = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": USER, **(body or {})},
    }
    return json.dumps({**fields, **wrapper}).encode()


def completion(body: dict[str, Any]) -> bytes:
    return chat(url="/v1/completions", body={"prompt": "Hi", **body})


def parsed(raw: bytes, **options: Any) -> ParsedRequest:
    request = parse_line(raw, **options)
    assert isinstance(request, ParsedRequest), request
    return request


def refused(raw: bytes, **options: Any) -> LineError:
    error = parse_line(raw, 7, **options)
    assert isinstance(error, LineError), error
    assert error.line == 7
    return error


def test_a_chat_line_keeps_everything_it_says() -> None:
    body = {"max_tokens": 5, "temperature": 0, "top_p": 0.5, "stop": "x", "seed": 3, "user": "u"}
    request = parsed(chat(body))
    assert request.endpoint == "/v1/chat/completions"
    assert (request.custom_id, request.model, request.prompt) == ("a", "m", None)
    assert request.messages == ({"role": "user", "content": "Hello"},)
    assert request.sampling == Sampling(max_tokens=5, temperature=0.0, top_p=0.5, stop=("x",), seed=3)


def test_what_is_not_set_stays_unset() -> None:
    nulls = dict.fromkeys(["max_tokens", "temperature", "top_p", "stop", "seed", "n", "tools", "logit_bias"])
    assert parsed(chat(nulls)).sampling == Sampling()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("Hi", "Hi"), ("", ""), ([1, 2, 3], [1, 2, 3]), (["only"], "only")],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: object, expected: object) -> None:
    assert parsed(completion({"prompt": prompt})).prompt == expected


@pytest.mark.parametrize(
    "prompt", [["a", "b"], [], [1, "a"], ["a", 1], [True], [-1], [2**32], [1.0], [[1]], 5, {}]
)
def test_any_other_prompt_is_refused(prompt: object) -> None:
    error = refused(completion({"prompt": prompt}))
    assert (error.code, error.param) == ("invalid_request", "prompt")


def test_text_parts_are_kept_as_parts() -> None:
    parts = [{"type": "text", "text": "a", "extra": 1}, {"type": "text", "text": "b"}]
    request = parsed(chat({"messages": [{"role": "user", "content": parts, "name": "Ann"}]}))
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert request.messages == ({"role": "user", "content": content},)


@pytest.mark.parametrize(
    ("messages", "code", "param"),
    [
        (None, "missing_required_parameter", "messages"),
        ([], "invalid_request", "messages"),
        ("hi", "invalid_request", "messages"),
        (["hi"], "invalid_request", "messages[0]"),
        ([{"content": "x"}], "invalid_request", "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "invalid_request", "messages[0].role"),
        ([*USER, {"role": "owner", "content": "x"}], "invalid_request", "messages[1].role"),
        ([{"role": "function", "content": "x"}], "unsupported_parameter", "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "missing_required_parameter", "messages[0].tool_call_id"),
        (
            [{"role": "tool", "tool_call_id": 5, "content": "x"}],
            "invalid_request",
            "messages[0].tool_call_id",
        ),
        ([{"role": "user"}], "missing_required_parameter", "messages[0].content"),
        ([{"role": "user", "content": []}], "invalid_request", "messages[0].content"),
        ([{"role": "user", "content": 5}], "invalid_request", "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "invalid_request", "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        (
            [{"role": "user", "content": [{"type": "text", "text": None}]}],
            "invalid_request",
            "messages[0].content[0].text",
        ),
        (
            [{"role": "assistant", "tool_calls": [{}]}],
            "missing_required_parameter",
            "messages[0].tool_calls[0].function",
        ),
        (
            [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "[]"}}],
                }
            ],
            "invalid_request",
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "user", "content": "", "tool_calls": [{}]}], "invalid_request", "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": []}], "missing_required_parameter", "messages[0].content"),
    ],
)
def test_a_wrong_message_is_refused_by_its_place(messages: object, code: str, param: str) -> None:
    error = refused(chat({"messages": messages}))
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 5.0, True, "5", [], 2**31, 10**400])
def test_a_token_limit_is_a_positive_integer(name: str, value: object) -> None:
    error = refused(chat({name: value}))
    assert (error.code, error.param) == ("invalid_request", name)
    assert len(error.message) < 200


def test_the_newer_name_of_the_token_limit_wins() -> None:
    assert parsed(chat({"max_tokens": 5, "max_completion_tokens": 9})).sampling.max_tokens == 9


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 0.0, 1, 2], [-0.1, 2.1, True, "1", []]),
        ("top_p", [0.01, 1], [0, -1, 1.1, False, "1"]),
        ("min_p", [0, 0.5, 1], [-0.1, 1.1, True, "0"]),
        ("top_k", [-1, 0, 50], [-2, 1.0, True, "5"]),
        ("seed", [0, 2**64 - 1, -(2**63)], [2**64, -(2**63) - 1, 1.0, True, "5"]),
        ("ignore_eos", [True, False], [0, 1, "true"]),
        ("presence_penalty", [-2, 0, 0.5, 2], [-2.1, 2.1, True, "1"]),
        ("frequency_penalty", [-2, 0, 0.5, 2], [-2.1, 2.1, True, "1"]),
        ("repetition_penalty", [0.1, 1, 100], [0, -1, 101, True]),
        ("min_tokens", [0, 5], [-1, 1.0, "5"]),
        ("include_stop_str_in_output", [True, False], [1, "true"]),
        ("n", [1, 128], [0, 129, 1.0, True, "1"]),
        ("best_of", [1, 128], [0, 129, 1.0, True]),
        ("prompt_logprobs", [0, 20], [-1, 21, True]),
        ("skip_special_tokens", [True, False], [0, "no"]),
        ("stop_token_ids", [[], [0, 2**32 - 1]], [5, [-1], [1.0], [True], ["5"], [1] * 129]),
        ("bad_words", [[], ["x", " y"]], ["x", [""], [" "], [5], ["x"] * 257]),
        ("logit_bias", [{}, {"5": 1, "6": -100}], [[], {"x": 1}, {"-1": 1}, {str(2**40): 1}, {"²": 1}]),
        ("stop", ["x", ["x"], [], ["x"] * 16], ["", [""], ["x", 1], 5, {}, ["x"] * 17, {"a": "b"}]),
    ],
)
def test_parameters_keep_to_their_types_and_ranges(name: str, good: list[object], bad: list[object]) -> None:
    for value in good:
        parsed(chat({name: value}))
    for value in bad:
        error = refused(chat({name: value}))
        assert (error.code, error.param) == ("invalid_request", name), value
        assert name in error.message


def test_of_fewer_answers_than_are_asked_for_there_are_no_best_ones() -> None:
    assert parsed(chat({"n": 2, "best_of": 3})).sampling.best_of == 3
    error = refused(chat({"n": 3, "best_of": 2}))
    assert (error.param, error.message) == ("best_of", "best_of must be at least n, which is 3, not 2")


def test_a_negative_seed_and_a_negative_top_k_take_their_canonical_value() -> None:
    sampling = parsed(chat({"seed": -1, "top_k": -1})).sampling
    assert (sampling.seed, sampling.top_k) == (2**64 - 1, 0)


@pytest.mark.parametrize(
    ("name", "neutral", "asking"),
    [
        ("use_beam_search", False, True),
        ("length_penalty", 1.0, True),
        ("reasoning_effort", "none", "high"),
        ("truncate_prompt_tokens", None, 5),
        ("echo", False, True),
        ("allowed_token_ids", None, [5]),
        ("return_token_ids", False, True),
        ("return_tokens_as_token_ids", False, True),
        ("guided_whitespace_pattern", None, " ?"),
        ("structural_tag", None, "{}"),
        ("repetition_detection", None, {"max_pattern_size": 3}),
        ("thinking_token_budget", None, 10),
        ("include_reasoning", True, False),
    ],
)
def test_a_parameter_that_is_not_honoured_is_refused_by_name(
    name: str, neutral: object, asking: object
) -> None:
    parsed(chat({name: neutral}))
    error = refused(chat({name: asking}))
    assert (error.code, error.param) == ("unsupported_parameter", name)
    assert name in error.message


def test_a_token_id_of_thousands_of_digits_is_refused_and_never_raises() -> None:
    for name in ("0" * 5000 + "1", "9" * 5000, "0" * 20 + str(2**40)):
        assert refused(chat({"logit_bias": {name: 1}})).param == "logit_bias"


@pytest.mark.parametrize("field", [b'"guided_json":%b', b'"response_format":{"type":%b}'])
def test_what_can_just_be_decoded_and_not_be_written_out_again_does_not_raise(field: bytes) -> None:
    for depth in range(900, 1001):
        nested = b'{"a":' * depth + b"1" + b"}" * depth
        body = b'{"messages":[{"role":"user","content":"x"}],' + field % nested + b"}"
        assert isinstance(parse_line(body, in_file=False), ParsedRequest | LineError)


def test_a_bias_is_read_by_token_id_and_must_be_a_number_in_its_range() -> None:
    assert parsed(chat({"logit_bias": {"5": 1, "6": 0, "7": -100}})).sampling.logit_bias == {
        5: 1.0,
        7: -100.0,
    }
    for wrong in (101, True, "1"):
        assert refused(chat({"logit_bias": {"5": wrong}})).param == "logit_bias"


@pytest.mark.parametrize(
    ("asked", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_schema", '{"type":"object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"é": 1}}}},
            Grammar("json_schema", '{"é":1}'),
        ),
        ({"guided_json": {"a": [1]}}, Grammar("json_schema", '{"a":[1]}')),
        ({"guided_json": "{}"}, Grammar("json_schema", "{}")),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["a", "b"]}, Grammar("choice", choices=("a", "b"))),
        ({"guided_grammar": "start: A"}, Grammar("lark", "start: A")),
        ({"structured_outputs": {"regex": "a+", "json": None}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_schema", '{"type":"object"}')),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar("choice", choices=("a",))),
        ({"guided_regex": "a+", "response_format": {"type": "text"}}, Grammar("regex", "a+")),
    ],
)
def test_what_an_answer_must_look_like_is_read_under_each_of_its_names(
    asked: dict[str, object], grammar: Grammar | None
) -> None:
    for line in (chat(asked), completion(asked)):
        read = parsed(line).sampling.grammar
        assert (read and structs.replace(read, param="grammar")) == grammar


def test_a_grammar_goes_by_the_name_that_the_user_wrote() -> None:
    names: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": {"a": [1]}}, "guided_json"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"guided_choice": ["a", "b"]}, "guided_choice"),
        ({"guided_grammar": "start: A"}, "guided_grammar"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
    ]
    for asked, param in names:
        grammar = parsed(chat(asked)).sampling.grammar
        assert grammar is not None
        assert grammar.param == param


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_a_grammar_that_says_nothing_or_two_things_is_refused_by_name(
    asked: dict[str, object], param: str
) -> None:
    assert refused(chat(asked)).param == param


def test_what_is_no_schema_is_told_what_one_may_be() -> None:
    asked = {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}
    assert refused(chat(asked)).message.endswith("must be an object, or the JSON of one, not a list")


SCHEMA = {"type": "object", "properties": {}}
WEATHER = {"name": "weather", "description": "now", "parameters": SCHEMA}
CLOCK = {"name": "clock", "strict": True}


def tools(*functions: object, **fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": function} for function in functions], **fields}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, None),
        (tools(tool_choice="auto", parallel_tool_calls=True), None),
        (tools(WEATHER), Tools((Tool("weather", "now", SCHEMA),))),
        (tools(CLOCK, tool_choice="none"), Tools((Tool("clock", strict=True),), "none")),
        (tools(CLOCK, tool_choice="required"), Tools((Tool("clock", strict=True),), "required")),
        (
            tools(CLOCK, tool_choice={"type": "function", "function": {"name": "clock"}}),
            Tools((Tool("clock", strict=True),), "required", "clock"),
        ),
        (tools(CLOCK, parallel_tool_calls=False), Tools((Tool("clock", strict=True),), parallel=False)),
    ],
)
def test_tools_and_whether_they_may_be_called_are_read(asked: dict[str, Any], expected: Tools | None) -> None:
    assert parsed(chat(asked)).tools == expected


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (tools({}), "tools[0].function.name"),
        (tools(CLOCK, {"name": "a b"}), "tools[1].function.name"),
        (tools(CLOCK, CLOCK), "tools[1].function.name"),
        (tools(*[{"name": f"f{i}"} for i in range(129)]), "tools"),
        (tools({"name": "f", "description": 5}), "tools[0].function.description"),
        (tools({"name": "f", "parameters": []}), "tools[0].function.parameters"),
        (tools({"name": "f", "parameters": {"type": "array"}}), "tools[0].function.parameters.type"),
        (tools({"name": "f", "strict": "yes"}), "tools[0].function.strict"),
        (tools(CLOCK, tool_choice="any"), "tool_choice"),
        (tools(CLOCK, tool_choice={"type": "allowed_tools"}), "tool_choice.type"),
        (tools(CLOCK, tool_choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
        (tools(CLOCK, parallel_tool_calls="no"), "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        (tools(CLOCK, guided_regex="a"), "guided_regex"),
        (tools(CLOCK, response_format={"type": "json_object"}), "response_format"),
    ],
)
def test_tools_that_make_no_sense_are_refused_by_their_place(asked: dict[str, Any], param: str) -> None:
    assert refused(chat(asked)).param == param


def test_a_form_for_all_of_the_answer_goes_with_tools_that_may_not_be_called() -> None:
    assert parsed(chat(tools(CLOCK, tool_choice="none", guided_regex="a"))).sampling.grammar is not None


def test_completions_have_no_tools() -> None:
    assert refused(completion(tools(CLOCK))).param == "tools"


def test_a_conversation_keeps_the_calls_in_it_and_what_they_brought() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}], "refusal": None}
    brought = {"role": "tool", "tool_call_id": "a", "name": "clock", "content": "noon"}
    assert parsed(chat({"messages": [*USER, asked, brought]})).messages == (
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        brought,
    )


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_a_chat_asks_for_log_probabilities_by_a_switch_and_a_number(
    asked: dict[str, object], count: int | None
) -> None:
    assert parsed(chat(asked)).sampling.logprobs == count


def test_a_completion_asks_for_log_probabilities_by_a_number() -> None:
    asked = [None, False, 0, 5]
    assert [parsed(completion({"logprobs": one})).sampling.logprobs for one in asked] == [None, None, 0, 5]


def test_log_probabilities_that_make_no_sense_are_refused_by_name() -> None:
    for asked, param in [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
    ]:
        assert refused(chat(asked)).param == param
    for value in (True, 21, -1, "5"):
        assert refused(completion({"logprobs": value})).param == "logprobs"


def test_messages_that_are_null_do_not_make_a_completion_a_chat() -> None:
    assert parsed(completion({"messages": None, "logprobs": 3})).sampling.logprobs == 3


def test_completions_refuse_their_own_parameters() -> None:
    parsed(completion({"best_of": 1, "suffix": "", "logprobs": None}))
    for name, value in [("prompt_embeds", "x"), ("suffix", "x")]:
        assert refused(completion({name: value})).code == "unsupported_parameter"


def test_a_streaming_line_is_refused() -> None:
    parsed(chat({"stream": False}))
    for value in [True, 1, "yes"]:
        error = refused(chat({"stream": value}))
        assert (error.code, error.param) == ("streaming_unsupported", "stream")


def test_unknown_parameters_and_hints_are_ignored() -> None:
    hints = {"store": True, "service_tier": "flex", "metadata": {"a": "b"}, "brand_new": [1]}
    assert parsed(chat(hints)) == parsed(chat())


@pytest.mark.parametrize(
    ("wrapper", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"custom_id": 5}, "invalid_request", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_request", "custom_id"),
        ({"method": None}, "missing_required_parameter", "method"),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"method": ["POST"]}, "invalid_method", "method"),
        ({"url": None}, "missing_required_parameter", "url"),
        ({"url": "/v1/responses"}, "invalid_url", "url"),
        ({"url": "http://x/v1/chat/completions"}, "invalid_url", "url"),
        ({"url": {}}, "invalid_url", "url"),
        ({"body": None}, "missing_required_parameter", "body"),
        ({"body": [1]}, "invalid_request", "body"),
    ],
)
def test_a_wrong_wrapper_is_refused(wrapper: dict[str, object], code: str, param: str) -> None:
    error = refused(chat(**wrapper))
    assert (error.code, error.param, error.unreadable) == (code, param, False)


def test_an_error_echoes_the_custom_id_where_there_is_one() -> None:
    assert refused(chat({"n": 0})).custom_id == "a"
    assert refused(chat(custom_id=5)).custom_id is None


def test_a_wrong_model_is_refused_and_an_absent_one_left_to_the_consumer() -> None:
    assert refused(chat({"model": 5})).param == "model"
    assert parsed(chat({"model": None})).model is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "JSON"),
        (b"[]", "must be a JSON object, not a list"),
        (b'"x"', "not a string"),
        (b"{", "not valid JSON"),
        (b"{} {}", "trailing"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": ' + b"9" * 5000 + b"}", "out of range"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
        (b'{"a": "\\ud800"}', "\\ud800, half of a surrogate pair"),
        (b'{"a": "\\uDC00x"}', "half of a surrogate pair"),
        (b'{"a": "\\ud83d\\u0041"}', "half of a surrogate pair"),
        (b'{"\\udfff": 1}', "half of a surrogate pair"),
        (b'{"a": "\n"}', "not valid JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b"\xff\xfe{\x00}\x00", "UTF-8"),
    ],
)
def test_what_is_no_json_object_is_unreadable_and_says_why(raw: bytes, says: str) -> None:
    error = refused(raw)
    assert (error.code, error.unreadable, error.custom_id) == ("invalid_json_line", True, None)
    assert says in error.message


def test_an_escaped_backslash_before_u_is_no_surrogate() -> None:
    assert "surrogate" not in refused(b'{"a": "\\\\ud800", }').message


def test_a_surrogate_pair_is_one_character() -> None:
    raw = chat({"messages": [{"role": "user", "content": "PLACE"}]}).replace(b"PLACE", b"\\ud83d\\ude00")
    messages = parsed(raw).messages
    assert messages is not None
    assert messages[0]["content"] == "😀"


def test_the_last_of_duplicate_keys_wins() -> None:
    assert parsed(chat().replace(b'"custom_id"', b'"custom_id": "first", "custom_id"')).custom_id == "a"


def test_a_line_over_the_cap_is_refused_with_the_cap() -> None:
    error = refused(chat(), max_bytes=10)
    assert (error.code, error.unreadable) == ("invalid_json_line", True)
    assert "10 bytes" in error.message


def test_on_a_queue_the_wrapper_may_be_left_out() -> None:
    wrapped = parsed(chat({"model": "m"}))
    body = {"model": "m", "messages": USER}
    for fields in [body, {"body": body}, {"custom_id": "a", "body": body}, {"method": "POST", "body": body}]:
        request = parsed(json.dumps(fields).encode(), in_file=False)
        assert (request.endpoint, request.messages) == (wrapped.endpoint, wrapped.messages)
    request = parsed(b'{"prompt": "Hi"}', in_file=False)
    assert (request.endpoint, request.prompt, request.custom_id) == ("/v1/completions", "Hi", None)
    assert refused(b"{}", in_file=False).code == "missing_required_parameter"
    assert refused(json.dumps(body).encode()).param == "custom_id"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = [
    "messages",
    "prompt",
    "model",
    "max_tokens",
    "temperature",
    "top_p",
    "stop",
    "n",
    "tools",
    "seed",
    "role",
]


@settings(deadline=None, max_examples=200)
@given(raw=st.binary(max_size=200))
def test_no_bytes_make_the_parser_raise(raw: bytes) -> None:
    for in_file in (True, False):
        assert isinstance(parse_line(raw, in_file=in_file), LineError | ParsedRequest)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(body=st.dictionaries(st.sampled_from(FIELDS), json_values), url=st.sampled_from(["chat/", ""]))
def test_no_body_makes_the_parser_raise(body: dict[str, Any], url: str) -> None:
    raw = json.dumps(
        {"custom_id": "a", "method": "POST", "url": f"/v1/{url}completions", "body": body}
    ).encode()
    request = parse_line(raw)
    assert isinstance(request, LineError | ParsedRequest)
    if isinstance(request, LineError):
        assert request.custom_id == "a"
        assert request.code
        assert request.message


@settings(deadline=None, max_examples=200)
@given(
    wrapper=st.dictionaries(st.sampled_from(["custom_id", "method", "url", "body", "prompt"]), json_values)
)
def test_no_wrapper_makes_the_parser_raise(wrapper: dict[str, Any]) -> None:
    raw = json.dumps(wrapper).encode()
    assert isinstance(parse_line(raw), LineError | ParsedRequest)
    assert isinstance(parse_line(raw, in_file=False), LineError | ParsedRequest)
