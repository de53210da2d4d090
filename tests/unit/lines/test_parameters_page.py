"""The page about parameters names each one that there is, and says truly where it works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.broker.lines.openai import CHAT, COMPLETIONS, EMBEDDINGS, Endpoint, parse_body
from headrace.broker.lines.refused import Refused
from headrace.broker.lines.request import ParsedRequest, Sampling
from headrace.gpu_engine.api import SamplingParams
from headrace.v1 import inference_pb2 as pb

PAGE = (Path(__file__).parents[3] / "docs" / "parameters.md").read_text()
PROMPTS: dict[Endpoint, dict[str, object]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS: {"prompt": "Hi"},
}
BESIDE = {"top_logprobs": {"logprobs": True}}
"""What a parameter needs beside it."""
ASKING: dict[str, object] = {
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.5,
    "seed": 5,
    "n": 2,
    "best_of": 2,
    "stop": ["x"],
    "include_stop_str_in_output": True,
    "stop_token_ids": [5],
    "ignore_eos": True,
    "min_tokens": 5,
    "skip_special_tokens": False,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {"5": 1},
    "bad_words": ["x"],
    "logprobs": True,
    "top_logprobs": 2,
    "prompt_logprobs": 2,
    "echo": True,
    "response_format": {"type": "json_object"},
    "guided_json": {},
    "guided_regex": "x",
    "guided_choice": ["x"],
    "guided_grammar": "start: X",
    "structured_outputs": {"regex": "x"},
    "grammar": "x",
}
TOOLS = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}


def table() -> dict[str, list[bool]]:
    """Of each parameter in the page's first table: whether it works for chats, completions, gRPC, Python."""
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if re.match(r"\| `.*(yes|no) \|", line)]
    said = [(re.findall(r"`(\w+)`", row[0]), [cell.strip() for cell in row[2:6]]) for row in rows]
    assert all(cell in ("yes", "no") for _, cells in said for cell in cells)
    return {name: [cell == "yes" for cell in cells] for names, cells in said for name in names}


def test_the_page_names_every_parameter_of_a_body_and_of_the_python_interface() -> None:
    names = {*Sampling.__struct_fields__, *SamplingParams.__struct_fields__}
    assert names <= table().keys() == ASKING.keys()
    assert all(f"`{name}`" in PAGE for name in ("input", "encoding_format", "dimensions"))


@pytest.mark.parametrize("name", [*ASKING, *TOOLS, "suffix"])
def test_embeddings_refuse_by_name_what_asks_for_something_of_an_answer(name: str) -> None:
    body = {"input": "Hi", name: (ASKING | TOOLS | {"suffix": "x"})[name]}
    with pytest.raises(Refused) as refused:
        parse_body(EMBEDDINGS, None, body)
    assert refused.value.param == name
    assert parse_body(EMBEDDINGS, None, body | {name: None}).embedding is not None


@pytest.mark.parametrize("name", ASKING)
def test_where_the_page_says_that_a_parameter_works_it_does_and_elsewhere_it_is_refused_by_name(
    name: str,
) -> None:
    chat, completion, grpc, python = table()[name]
    assert works(CHAT, name) is chat
    assert works(COMPLETIONS, name) is completion
    assert (name in pb.SamplingParams.DESCRIPTOR.fields_by_name) is grpc
    assert (name in SamplingParams.__struct_fields__) is python


def works(endpoint: Endpoint, name: str) -> bool:
    """Whether a body that asks for it is another request than one that does not, as opposed to refused."""
    plain = PROMPTS[endpoint] | (BESIDE.get(name, {}) if endpoint == CHAT else {})
    value: object = 2 if (endpoint, name) == (COMPLETIONS, "logprobs") else ASKING[name]
    asking = parsed(endpoint, {**plain, name: value})
    assert asking != parsed(endpoint, plain), f"{name} is not heard"
    assert asking == name or isinstance(asking, ParsedRequest), f"{name} is refused as {asking}"
    return isinstance(asking, ParsedRequest)


def parsed(endpoint: Endpoint, body: dict[str, object]) -> ParsedRequest | str | None:
    """The request, or the name of what is refused."""
    try:
        return parse_body(endpoint, None, body)
    except Refused as refused:
        return refused.param
