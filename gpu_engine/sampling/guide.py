"""Structured output: a grammar that an answer must follow, compiled and matched by llguidance.

A matcher stands where the tokens so far have led it. Before each draw it catches up with what has become
known since (all of the output, where a request is resumed), and tells which tokens may follow; the end token
is among them only where the grammar may end.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Container, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from headrace.gpu_engine.api import EngineError, Grammar
from headrace.gpu_engine.sampling.known import KnownTokens

Allowed = npt.NDArray[np.bool_]

LONGEST_COMPLAINT: Final = 600

LEXER_FUEL: Final = 500_000
"""Half of what llguidance grants by default for preparing a grammar's tokens. A schema with 10,000 enumerated
strings needs less; a regular expression that is made to be expensive holds up its first step half as long."""

MOST_KEPT: Final = 64
"""Compiled grammars; a large one takes some megabytes."""

Content: TypeAlias = tuple[str, str, tuple[str, ...]]

MOST_MASK_S: Final = 0.25
"""Processor time of the first mask, of which one takes milliseconds, if not a grammar is made to be
expensive: all running requests wait for the masks of a step."""


class GrammarError(Exception):
    """A grammar cannot be used; the text is the parser's own. `part`: which of its parts is at fault."""

    def __init__(self, message: str, part: int | None = None) -> None:
        super().__init__(message)
        self.part = part


Compiled: TypeAlias = LLMatcher | GrammarError
"""A matcher at the beginning of its grammar, or why there is none."""


def refused_grammar(grammar: Grammar | None, refusal: GrammarError) -> EngineError:
    """In terms of what the user wrote."""
    assert grammar is not None
    param = grammar.param if refusal.part is None else grammar.parts[refusal.part][0]
    return EngineError(code="invalid_request", message=f"{param} cannot be used: {refusal}", param=param)


def content_of(grammar: Grammar) -> Content:
    """What it says, whatever it is called."""
    return grammar.kind, grammar.source, grammar.choices


class Vocabulary(msgspec.Struct, frozen=True):
    """What grammars are of. `tokenizer_json`: the tokenizer in the form of Hugging Face's `tokenizer.json`.
    `size`: at least as many ids as it has and as a row has logits. `eos_ids`: at least one."""

    tokenizer_json: str
    size: int
    eos_ids: list[int]


class Guide:
    """The grammar of one request, and how far its output has come in it."""

    __slots__ = ("_known", "_matched", "matcher", "vocab_size")

    def __init__(self, matcher: LLMatcher, vocab_size: int, known: KnownTokens) -> None:
        self.matcher = matcher
        self.vocab_size = vocab_size
        self._known = known
        self._matched = known.num_prompt

    def catch_up(self, end_ids: Container[int] = ()) -> None:
        """Moves on by the tokens that are new since the last time, up to one of `end_ids`."""
        new = list(takewhile(lambda token: token not in end_ids, self._known.token_ids[self._matched :]))
        if new:
            self.matcher.consume_tokens(new)
            self._matched += len(new)

    @property
    def failure(self) -> str | None:
        """Why no token can be drawn any more, if so."""
        if not self.matcher.is_error():
            return None
        return f"the answer cannot go on under its grammar: {_first_lines(self.matcher.get_error())}"


class GuideMaker:
    """Makes guides for one vocabulary. Loading that takes up to a second, once, at the first grammar or by
    `load`.

    A grammar is compiled once, and copied for each request; the last `MOST_KEPT` are kept, with those that
    were refused. `compile` may run in any thread, all else is its owner's. The arguments: see `Vocabulary`.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self.vocabulary = Vocabulary(tokenizer_json, vocab_size, sorted(eos_ids))
        self._loading = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._kept: OrderedDict[Content, Compiled] = OrderedDict()

    def load(self) -> LLTokenizer:
        """The vocabulary, as llguidance needs it. Holds the interpreter while it is made. Raises GrammarError
        for a tokenizer that is none of those that it knows."""
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._read_vocabulary()
            return self._tokenizer

    def _read_vocabulary(self) -> LLTokenizer:
        try:
            own = self.vocabulary
            return LLTokenizer(own.tokenizer_json, n_vocab=own.size, eos_token=own.eos_ids)
        except ValueError as error:
            raise GrammarError(
                f"this model's tokenizer is of a kind that grammars cannot use: {error}"
            ) from error

    def prepare(self) -> None:
        """Loads what can be loaded: where that fails, each grammar is refused with the reason."""
        with contextlib.suppress(GrammarError):
            self.load()

    def knows(self, grammar: Grammar) -> bool:
        """Whether a guide can be made without compiling."""
        return content_of(grammar) in self._kept

    def compile(self, grammar: Grammar) -> Compiled:
        """The grammar with its first mask computed, since that is where an expensive one takes its time; or
        why it is refused, in the parser's words."""
        try:
            matcher = self._match(_compile(grammar))
            if not matcher.is_error():
                return matcher
            return self._at_fault(grammar) or GrammarError(_first_lines(matcher.get_error()))
        except GrammarError as refusal:
            return refusal

    def keep(self, grammar: Grammar, compiled: Compiled) -> None:
        """For the next requests with this grammar."""
        content = content_of(grammar)
        self._kept[content] = compiled
        self._kept.move_to_end(content)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def make(self, grammar: Grammar, known: KnownTokens) -> Guide:
        """Raises GrammarError in the parser's words, also where the output so far does not follow it."""
        compiled = self._kept.get(content_of(grammar))
        if compiled is None:
            compiled = self.compile(grammar)
        self.keep(grammar, compiled)
        if isinstance(compiled, GrammarError):
            raise GrammarError(str(compiled), compiled.part)
        guide = Guide(compiled.deep_copy(), self.vocabulary.size, known)
        guide.catch_up(self.vocabulary.eos_ids)
        if guide.matcher.is_error():
            raise GrammarError(_first_lines(guide.matcher.get_error()))
        return guide

    def _match(self, source: str) -> LLMatcher:
        limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, verbose_errors=False)
        matcher = LLMatcher(self.load(), source, log_level=0, limits=limits)
        if not matcher.is_error():
            begun = time.thread_time()
            matcher.compute_bitmask()
            spent = time.thread_time() - begun
            if spent > MOST_MASK_S and not matcher.is_error():
                raise GrammarError(
                    f"its first token alone takes {spent:.1f} s to decide; make its repetitions smaller"
                )
        return matcher

    def _at_fault(self, grammar: Grammar) -> GrammarError | None:
        """The first part that cannot be used by itself either."""
        for place, (_, schema) in enumerate(grammar.parts):
            alone = self._match(LLMatcher.grammar_from_json_schema(schema))
            if alone.is_error():
                return GrammarError(_first_lines(alone.get_error()), place)
        return None


class Masks:
    """Computes the masks of all guided rows of a step together, in llguidance's own threads."""

    def __init__(self) -> None:
        self._executor = LLExecutor()

    def compute(self, guides: Sequence[Guide], vocab_size: int) -> Allowed:
        """[len(guides), vocab_size]: which tokens may come next. All of them for a guide that has failed."""
        width = max(guide.vocab_size for guide in guides)
        bits = np.full((len(guides), -(-width // 32)), -1, np.int32)
        for guide in guides:
            guide.catch_up()
        usable = [(guide.matcher, i) for i, guide in enumerate(guides) if not guide.matcher.is_error()]
        if usable:  # llguidance takes no empty list
            fill_next_token_bitmask_par(self._executor, usable, bits)
        return np.unpackbits(bits.view(np.uint8), axis=1, count=vocab_size, bitorder="little").view(np.bool_)


def _compile(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(_check_json(grammar.source))
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "choice":
            return LLMatcher.grammar_from_lark(_choice(grammar.choices))
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)


def _check_json(schema: str) -> str:
    """llguidance puts the text into a larger one as it is: it must not reach out of its place."""
    try:
        json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is no valid JSON: {error}") from error
    return schema


def _choice(choices: Sequence[str]) -> str:
    """One terminal, for the lexer: as rules, a few thousand choices are more than the parser holds."""
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in choices)


def _first_lines(complaint: str) -> str:
    """Without the mark where llguidance leaves out its state and the whole grammar."""
    text = complaint.removesuffix("<non-verbose/>").strip()
    return text if len(text) <= LONGEST_COMPLAINT else text[:LONGEST_COMPLAINT] + "…"
