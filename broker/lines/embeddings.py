"""The body of `/v1/embeddings`, and how its answer holds vectors.

{"input": "text" | ["text", …] | [1, 2, …] | [[1, 2, …], …], "encoding_format": "float" | "base64",
 "dimensions": 256}
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from struct import unpack

from headrace.broker.lines.parameters import read_integer
from headrace.broker.lines.refused import invalid, missing, shown, type_name
from headrace.broker.lines.request import Embedding, ParsedRequest, Sampling
from headrace.broker.lines.values import to_token_ids

MAX_INPUTS = 2048
MAX_DIMENSIONS = 1 << 20
FORMATS = ("float", "base64")
OF_ANSWERS = {
    *("max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("n", "best_of", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "bad_words"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "skip_special_tokens"),
    *("logprobs", "top_logprobs", "prompt_logprobs", "echo", "suffix", "response_format", "grammar"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
    *("tools", "tool_choice", "parallel_tool_calls"),
}
"""Parameters that ask for something of an answer."""


def parse_embedding(custom_id: str | None, model: str | None, body: Mapping[str, object]) -> ParsedRequest:
    """The request that `body` is; raises `Refused`."""
    embedding = _read_embedding(body)
    return ParsedRequest("/v1/embeddings", custom_id, model, None, None, Sampling(), embedding=embedding)


def _read_embedding(body: Mapping[str, object]) -> Embedding:
    for name, value in body.items():
        if name in OF_ANSWERS and value is not None:
            raise invalid(name, "is of no meaning for embeddings, which have no answer: leave it out")
    encoding = body.get("encoding_format")
    if encoding not in (None, *FORMATS):
        raise invalid("encoding_format", f"must be one of {', '.join(FORMATS)}, not {shown(encoding)}")
    return Embedding(
        inputs=_inputs(body.get("input")),
        is_base64=encoding == "base64",
        dimensions=read_integer(body, "dimensions", 1, MAX_DIMENSIONS),
    )


def vector_json(vector: bytes, *, is_base64: bool) -> str | list[float]:
    """A vector of little-endian float32 as the API holds it. Nine digits tell all float32 apart."""
    if is_base64:
        return base64.b64encode(vector).decode()
    return [float(f"{number:.9g}") for number in unpack(f"<{len(vector) // 4}f", vector)]


def _inputs(value: object) -> tuple[str | tuple[int, ...], ...]:
    if value is None:
        raise missing("input")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise invalid("input", f"must be a string, a list of strings or token ids, not {type_name(value)}")
    if not value:
        raise invalid("input", "must not be empty")
    if type(value[0]) is int:
        return (tuple(to_token_ids("input", value)),)
    if len(value) > MAX_INPUTS:
        raise invalid("input", f"may hold at most {MAX_INPUTS} texts, not {len(value)}")
    return tuple(_input(f"input[{i}]", one, like=value[0]) for i, one in enumerate(value))


def _input(where: str, value: object, like: object) -> str | tuple[int, ...]:
    if isinstance(value, str) and isinstance(like, str):
        return value
    if isinstance(value, list) and isinstance(like, list):
        return tuple(to_token_ids(where, value))
    raise invalid(where, "must be a string or a list of token ids, and all of them of one kind")
