"""A request as our services understand it, whichever format it came in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from headrace.broker.lines.tools import Tools


class Grammar(msgspec.Struct, frozen=True):
    """What an answer must look like. `source`: a JSON schema as JSON, a regular expression, or a Lark
    grammar; `choices`: the only answers there are, for `choice`. `param`: what the user calls it."""

    kind: Literal["json_schema", "regex", "choice", "lark"]
    source: str = ""
    choices: tuple[str, ...] = ()
    param: str = "grammar"


class Sampling(msgspec.Struct, frozen=True):
    """Sampling parameters as the user set them; None: not set. Terms of the OpenAI API and vLLM."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = {}
    bad_words: tuple[str, ...] = ()
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    echo: bool = False
    grammar: Grammar | None = None
    logprobs: int | None = None
    n: int | None = None
    best_of: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool | None = None


class Embedding(msgspec.Struct, frozen=True):
    """Texts, or token ids, to embed; how vectors are written; how many numbers of each (None: all)."""

    inputs: tuple[str | tuple[int, ...], ...]
    is_base64: bool = False
    dimensions: int | None = None


class ParsedRequest(msgspec.Struct, frozen=True):
    """A valid request. Exactly one of `messages` (chat), `prompt` (text or token ids) and `embedding` is
    set."""

    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
    custom_id: str | None
    model: str | None
    messages: Sequence[Mapping[str, object]] | None
    prompt: str | Sequence[int] | None
    sampling: Sampling
    embedding: Embedding | None = None
    tools: Tools | None = None


class LineError(msgspec.Struct, frozen=True):
    """Why a line is no valid request. `code` as in `reference` of the OpenAI batch API, `line` is the
    physical line number in its file from 1 (None outside files). `unreadable`: not even a JSON object;
    on a queue such a message goes to the dead letters."""

    code: str
    message: str
    param: str | None = None
    custom_id: str | None = None
    line: int | None = None
    unreadable: bool = False
