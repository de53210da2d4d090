"""From a message to what the engine takes: fetch its body, parse, tokenise, off the event loop.

Parsing and tokenising a long prompt takes milliseconds to seconds; both run in one thread of their own, so
that heartbeat and streams go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.broker.blobs import BlobStore, check_out
from headrace.broker.lines import request as lines
from headrace.broker.lines.logprobs import Spell
from headrace.broker.lines.parse import parse_message
from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.broker.lines.tools import tool_fields
from headrace.broker.message import Message
from headrace.consumer.batches import BatchThread
from headrace.consumer.errors import EngineUnusable
from headrace.consumer.failures import BROKEN_BY_US
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.tools import offered_tools, tool_grammar
from headrace.gpu_engine.api import EmbedParams, EngineInfo, Grammar, SamplingParams
from headrace.gpu_engine.text.contract import TextError, Tokenizer
from headrace.gpu_engine.text.stream import open_text
from headrace.gpu_engine.text.tools.formats import CallFormat

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_SCORES = 1 << 16  # of a prompt
TOO_DEEP = LineError("invalid_request", "the request is nested too deeply")
CHARACTERS_PER_TOKEN = 512  # far above what the longest tokens of usual vocabularies hold, runs of spaces

NO_TOOLS = (
    "tools cannot be used with this model: its chat template takes none, or takes them and shows no form of "
    "calls that is known here (in that case the operator can name one by --tool-call-format)"
)


class Prepared(msgspec.Struct, frozen=True):
    """Ready for the engine, but for the seed. `replayed`: what the engine takes as shown already when the
    tokens of interrupted answers are given to it, of each of them; empty where there are none. `call_format`:
    how calls of tools stand in the answers; None where there are no tools."""

    prompt_ids: list[int]
    params: SamplingParams
    replayed: tuple[str, ...] = ()
    embed: EmbedParams | None = None
    call_format: CallFormat | None = None
    adapter: str | None = None

    @property
    def num_results(self) -> int:
        """Answers that the engine gives, or vectors."""
        return self.params.n if self.embed is None else 1 + len(self.embed.others)

    @property
    def num_prompt_tokens(self) -> int:
        others = [] if self.embed is None else self.embed.others
        return len(self.prompt_ids) + sum(map(len, others))

    @property
    def can_resume(self) -> bool:
        """Whether the engine can go on from tokens. The best of several answers are known when all have
        ended: they come at once, at the end, and whoever takes over makes all of them anew."""
        return self.params.best_of in (None, self.params.n)


class Reading(msgspec.Struct, frozen=True):
    """What a message says. `prepared`: what the engine takes of it, or why that cannot be; None where it was
    not to be run, cannot be read, or is for another model."""

    parsed: ParsedRequest | LineError
    prepared: Prepared | LineError | None = None


class Preparer:
    """`served`: names of the model that requests may use, the preferred one first. `store`: where large
    bodies lie. `max_input_length`: tokens of the longest prompt that the engine takes; a text that must have
    more is never tokenised, since that takes many times its memory. `adapters`: those of the names that are a
    LoRA adapter's."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        served: Sequence[str],
        store: BlobStore | None = None,
        max_input_length: int | None = None,
        adapters: Collection[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._max_input_length = max_input_length
        self._served = tuple(served)
        self._adapters = frozenset(adapters)
        self._store = store
        self._thread = BatchThread("prepare")

    def serves(self, model: str | None) -> bool:
        """Whether requests may name this model; one that names none takes what there is."""
        return model is None or model in self._served

    @property
    def shown(self) -> tuple[str, ...]:
        """The names that clients are told: a folder of this machine may be used, but is nobody's business."""
        hidden = [name for name in self._served if name not in self._adapters and Path(name).exists()]
        return tuple(name for name in self._served if name not in hidden) or self._served[:1]

    async def fetch(self, message: Message) -> Message:
        """The message with its body, wherever that lies. Raises BlobError where it cannot be had."""
        return await check_out(message, self._store)

    async def read(self, message: Message, kept: Sequence[Sequence[int]] | None) -> Reading:
        """Reads a request and, where its model is served here, makes it ready for the engine. `kept`: tokens
        of interrupted answers that will be continued, of each; None: it is not to be run, only read."""
        return await self._thread.run(lambda: self._read(message, kept))

    def spelling(self, parsed: ParsedRequest | None) -> Spell:
        """A token's text by itself, as the request wants texts."""
        shows_special = parsed is not None and parsed.sampling.skip_special_tokens is False
        decoder = self._tokenizer.verbatim if shows_special else self._tokenizer
        return lambda token: decoder.decode([token])

    def close(self) -> None:
        self._thread.close()

    def _read(self, message: Message, kept: Sequence[Sequence[int]] | None) -> Reading:
        parsed = _guarded(lambda: parse_message(message))
        if kept is None or isinstance(parsed, LineError) or not self.serves(parsed.model):
            return Reading(parsed)
        return Reading(parsed, _guarded(lambda: self._tokenise(parsed, kept)))

    def _tokenise(self, parsed: ParsedRequest, kept: Sequence[Sequence[int]]) -> Prepared | LineError:
        if (problem := self._hopeless(parsed)) is not None:
            return LineError("context_length_exceeded", problem, prompt_param(parsed), parsed.custom_id)
        if offered_tools(parsed) is not None and self._tokenizer.call_format is None:
            return LineError("unsupported_parameter", NO_TOOLS, "tools", parsed.custom_id)
        try:
            adapter = parsed.model if parsed.model in self._adapters else None
            prepared = msgspec.structs.replace(self._prepare(parsed), adapter=adapter)
        except TextError as error:
            return LineError("invalid_request", str(error), prompt_param(parsed), parsed.custom_id)
        if (problem := _too_many_scores(prepared)) is not None:
            return LineError("invalid_request", problem, "prompt_logprobs", parsed.custom_id)
        if not any(kept) or not prepared.can_resume:
            return prepared
        of_each = islice(chain(kept, repeat(())), prepared.params.n)
        replayed = tuple(self._replay(prepared, tokens) for tokens in of_each)
        return msgspec.structs.replace(prepared, replayed=replayed)

    def _prepare(self, parsed: ParsedRequest) -> Prepared:
        """Raises TextError."""
        if parsed.embedding is not None:
            first, *others = map(self._ids_of, parsed.embedding.inputs)
            embed = EmbedParams(dimensions=parsed.embedding.dimensions, others=others)
            return Prepared(first, SamplingParams(), embed=embed)
        params, tools = sampling_params(parsed.sampling), offered_tools(parsed)
        call_format = self._tokenizer.call_format
        if tools is None or call_format is None or parsed.messages is None:
            return Prepared(self._prompt_ids(parsed), params)
        prompt_ids = self._tokenizer.encode_chat(parsed.messages, tool_fields(tools.offered))
        params = msgspec.structs.replace(params, grammar=tool_grammar(tools, call_format))
        return Prepared(prompt_ids, params, call_format=call_format)

    def _replay(self, prepared: Prepared, tokens: Sequence[int]) -> str:
        """The text that one answer's tokens make; without any, not even an echoed prompt was shown. The token
        that ended it is no text of it, as in the engine."""
        if not tokens:
            return ""
        text = open_text(self._tokenizer, prepared.prompt_ids, prepared.params)
        return text.feed(tokens, ended=prepared.params.end_at(tokens[-1], self._tokenizer.eos_ids))

    def _hopeless(self, parsed: ParsedRequest) -> str | None:
        limit = self._max_input_length
        if limit is None:
            return None
        tools = offered_tools(parsed)
        chat = (parsed.messages, tool_fields(tools.offered) if tools is not None else ())
        texts = [chat, parsed.prompt, *(parsed.embedding.inputs if parsed.embedding else ())]
        characters = max(map(_characters, texts))  # token ids have none: they are for the engine to count
        if characters <= limit * CHARACTERS_PER_TOKEN:
            return None
        return (
            f"the prompt has {characters} characters, which is more than {limit} tokens in any case; that is "
            "all that the engine takes, so shorten the prompt"
        )

    def _prompt_ids(self, parsed: ParsedRequest) -> list[int]:
        if parsed.messages is not None:
            return self._tokenizer.encode_chat(parsed.messages)
        assert parsed.prompt is not None
        return self._ids_of(parsed.prompt)

    def _ids_of(self, text: str | Sequence[int]) -> list[int]:
        return self._tokenizer.encode(text) if isinstance(text, str) else list(text)


def _guarded(work: Callable[[], T]) -> T | LineError:
    """A request that trips a bug here must fail alone: else it would end one consumer after the other. Native
    code panics with what is no Exception."""
    try:
        return work()
    except RecursionError:
        return TOO_DEEP
    except BaseException:
        log.exception("a request could not be prepared")
        return BROKEN_BY_US


def prompt_param(parsed: ParsedRequest) -> str:
    """What the user calls the prompt."""
    if parsed.embedding is not None:
        return "input"
    return "prompt" if parsed.messages is None else "messages"


def _too_many_scores(prepared: Prepared) -> str | None:
    """What a log, and a line, can hold of a prompt's log probabilities is bounded."""
    count = prepared.params.prompt_logprobs
    tokens = len(prepared.prompt_ids)
    if count is None or tokens * (1 + count) <= MOST_SCORES:
        return None
    return (
        f"{count} log probabilities beside each of the prompt's {tokens} tokens are more than an answer "
        f"holds, {MOST_SCORES} in all; ask for fewer"
    )


def _characters(value: object) -> int:
    """Of all text in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_characters(part) for part in value.values())
    return sum(_characters(part) for part in value) if isinstance(value, list | tuple) else 0


def sampling_params(sampling: Sampling) -> SamplingParams:
    """What the user left open takes the OpenAI API's default. The seed is not set here."""
    default = SamplingParams()
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=default.temperature if sampling.temperature is None else sampling.temperature,
        top_p=default.top_p if sampling.top_p is None else sampling.top_p,
        top_k=default.top_k if sampling.top_k is None else sampling.top_k,
        min_p=default.min_p if sampling.min_p is None else sampling.min_p,
        stop=sampling.stop,
        ignore_eos=sampling.ignore_eos,
        logprobs=sampling.logprobs,
        prompt_logprobs=_prompt_scores(sampling),
        n=sampling.n or default.n,
        best_of=sampling.best_of,
        presence_penalty=sampling.presence_penalty or default.presence_penalty,
        frequency_penalty=sampling.frequency_penalty or default.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty or default.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words=sampling.bad_words,
        min_tokens=sampling.min_tokens or default.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens is not False,
        echo=sampling.echo,
        grammar=_engine_grammar(sampling.grammar),
    )


def _prompt_scores(sampling: Sampling) -> int | None:
    """An echoed prompt is told with the answer's number of log probabilities."""
    asked = [sampling.prompt_logprobs, sampling.logprobs if sampling.echo else None]
    return max((count for count in asked if count is not None), default=None)


def _engine_grammar(grammar: lines.Grammar | None) -> Grammar | None:
    if grammar is None:
        return None
    return Grammar(kind=grammar.kind, source=grammar.source, choices=grammar.choices, param=grammar.param)


def served_names(settings: ConsumerSettings, info: EngineInfo) -> list[str]:
    """Names that requests may use for the model, the preferred one first, and then those of its adapters.
    Raises EngineUnusable where one means both."""
    names = (settings.model, info.model, settings.engine.model, *settings.aliases)
    own = list(dict.fromkeys(name for name in names if name))
    if both := info.adapters.keys() & own:
        raise EngineUnusable(f"The LoRA adapter {min(both)} has a name of the model's; give it another.")
    return [*own, *info.adapters]
