"""From a message to what the engine takes: fetch its body, parse, tokenise, off the event loop.

Parsing and tokenising a long prompt takes milliseconds to seconds; both run in one thread of their own (one,
since a tokenizer is not shared between threads), so that heartbeat and streams go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.broker.blobs import BlobStore, check_out
from headrace.broker.lines import request as lines
from headrace.broker.lines.parse import parse_message
from headrace.broker.lines.request import LineError, ParsedRequest, Sampling
from headrace.broker.message import Message
from headrace.consumer.batches import BatchThread
from headrace.consumer.failures import BROKEN_BY_US
from headrace.consumer.settings import ConsumerSettings
from headrace.gpu_engine.api import EngineInfo, Grammar, SamplingParams
from headrace.gpu_engine.text.contract import TextError, Tokenizer
from headrace.gpu_engine.text.stream import open_text

log = logging.getLogger(__name__)

T = TypeVar("T")

CHARACTERS_PER_TOKEN = 512  # far above what the longest tokens of usual vocabularies hold, runs of spaces


class Prepared(msgspec.Struct, frozen=True):
    """Ready for the engine, but for the seed. `replayed_text`: what the engine takes as shown already when
    the tokens of an interrupted answer are given to it."""

    prompt_ids: list[int]
    params: SamplingParams
    replayed_text: str = ""


class Reading(msgspec.Struct, frozen=True):
    """What a message says. `prepared`: what the engine takes of it, or why that cannot be; None where it was
    not to be run, cannot be read, or is for another model."""

    parsed: ParsedRequest | LineError
    prepared: Prepared | LineError | None = None


class Preparer:
    """`served`: names of the model that requests may use, the preferred one first. `store`: where large
    bodies lie. `max_input_length`: tokens of the longest prompt that the engine takes; a text that must have
    more is never tokenised, since that takes many times its memory."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        served: Sequence[str],
        store: BlobStore | None = None,
        max_input_length: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_input_length = max_input_length
        self._served = tuple(served)
        self._store = store
        self._thread = BatchThread("prepare")

    def serves(self, model: str | None) -> bool:
        """Whether requests may name this model; one that names none takes what there is."""
        return model is None or model in self._served

    @property
    def shown(self) -> tuple[str, ...]:
        """The names that clients are told: a folder of this machine may be used, but is nobody's business."""
        return tuple(name for name in self._served if not Path(name).exists()) or self._served[:1]

    async def fetch(self, message: Message) -> Message:
        """The message with its body, wherever that lies. Raises BlobError where it cannot be had."""
        return await check_out(message, self._store)

    async def read(self, message: Message, kept: Sequence[int] | None) -> Reading:
        """Reads a request and, where its model is served here, makes it ready for the engine. `kept`: tokens
        of an interrupted answer that will be continued; None: it is not to be run, only read."""
        return await self._thread.run(lambda: self._read(message, kept))

    def spell(self, token: int) -> str:
        """A token's text by itself."""
        return self._tokenizer.decode([token])

    def close(self) -> None:
        self._thread.close()

    def _read(self, message: Message, kept: Sequence[int] | None) -> Reading:
        parsed = _guarded(lambda: parse_message(message))
        if kept is None or isinstance(parsed, LineError) or not self.serves(parsed.model):
            return Reading(parsed)
        return Reading(parsed, _guarded(lambda: self._tokenise(parsed, kept)))

    def _tokenise(self, parsed: ParsedRequest, kept: Sequence[int]) -> Prepared | LineError:
        params = sampling_params(parsed.sampling)
        if (problem := self._hopeless(parsed)) is not None:
            return LineError("context_length_exceeded", problem, prompt_param(parsed), parsed.custom_id)
        try:
            prompt_ids = self._prompt_ids(parsed)
        except TextError as error:
            return LineError("invalid_request", str(error), prompt_param(parsed), parsed.custom_id)
        replayed = open_text(self._tokenizer, prompt_ids, params).feed(kept) if kept else ""
        return Prepared(prompt_ids, params, replayed)

    def _hopeless(self, parsed: ParsedRequest) -> str | None:
        limit = self._max_input_length
        if limit is None or not (parsed.prompt is None or isinstance(parsed.prompt, str)):
            return None  # token ids are for the engine to count
        characters = _characters(parsed.prompt if parsed.messages is None else parsed.messages)
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
        if isinstance(parsed.prompt, str):
            return self._tokenizer.encode(parsed.prompt)
        return list(parsed.prompt)


def _guarded(work: Callable[[], T]) -> T | LineError:
    """A request that trips a bug here must fail alone: else it would end one consumer after the other. Native
    code panics with what is no Exception."""
    try:
        return work()
    except BaseException:
        log.exception("a request could not be prepared")
        return BROKEN_BY_US


def prompt_param(parsed: ParsedRequest) -> str:
    """What the user calls the prompt."""
    return "prompt" if parsed.messages is None else "messages"


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
        presence_penalty=sampling.presence_penalty or default.presence_penalty,
        frequency_penalty=sampling.frequency_penalty or default.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty or default.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words=sampling.bad_words,
        min_tokens=sampling.min_tokens or default.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        include_stop_str_in_output=sampling.include_stop_str_in_output,
        echo=sampling.echo,
        grammar=_engine_grammar(sampling.grammar),
    )


def _engine_grammar(grammar: lines.Grammar | None) -> Grammar | None:
    if grammar is None:
        return None
    return Grammar(kind=grammar.kind, source=grammar.source, choices=grammar.choices)


def served_names(settings: ConsumerSettings, info: EngineInfo) -> list[str]:
    """Names that requests may use for the model, the preferred one first."""
    names = (settings.model, info.model, settings.engine.model, *settings.aliases)
    return list(dict.fromkeys(name for name in names if name))
