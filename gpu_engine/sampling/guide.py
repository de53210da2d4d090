"""Structured output: a grammar that an answer must follow, compiled and matched by llguidance.

A matcher stands where the tokens so far have led it. Before each draw it catches up with what has become
known since (all of the output, where a request is resumed), and tells which tokens may follow; the end token
is among them only where the grammar may end.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from itertools import takewhile
from typing import Final

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from headrace.gpu_engine.api import Grammar
from headrace.gpu_engine.sampling.known import KnownTokens

Allowed = npt.NDArray[np.bool_]

LONGEST_COMPLAINT: Final = 600

LEXER_FUEL: Final = 500_000
"""Half of what llguidance grants by default for preparing a grammar's tokens. A schema with 10,000 enumerated
strings needs less; a regular expression that is made to be expensive holds up its first step half as long."""


class GrammarError(Exception):
    """A grammar cannot be used; the text is the parser's own."""


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
    """Makes guides for one vocabulary; loading it takes up to a second, once, at the first grammar.

    `tokenizer_json`: the tokenizer in the form of Hugging Face's `tokenizer.json`. `vocab_size`: at least as
    many ids as it has and as a row has logits. `eos_ids`: at least one.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._source = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._tokenizer: LLTokenizer | None = None

    def make(self, grammar: Grammar, known: KnownTokens) -> Guide:
        """Raises GrammarError in the parser's words, also where the output so far does not follow it."""
        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(self._source, n_vocab=self._vocab_size, eos_token=self._eos_ids)
        limits = LLParserLimits(initial_lexer_fuel=LEXER_FUEL, verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, _compile(grammar), log_level=0, limits=limits)
        guide = Guide(matcher, self._vocab_size, known)
        guide.catch_up(self._eos_ids)
        if matcher.is_error():
            raise GrammarError(_first_lines(matcher.get_error()))
        return guide


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
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _first_lines(complaint: str) -> str:
    """Without the mark where llguidance leaves out its state and the whole grammar."""
    text = complaint.removesuffix("<non-verbose/>").strip()
    return text if len(text) <= LONGEST_COMPLAINT else text[:LONGEST_COMPLAINT] + "…"
