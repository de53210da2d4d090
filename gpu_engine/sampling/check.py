"""Whether the parameters of a request make sense: by themselves, together, and for a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isfinite
from typing import TypeAlias

from headrace.gpu_engine.api import EngineError, Grammar, SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 256
MAX_BIASES = 1024
MAX_LOGPROBS = 20
MAX_ANSWERS = 128
MAX_GRAMMAR_CHARACTERS = 1 << 20
SEED_RANGE = (-(1 << 63), (1 << 64) - 1)

Rule: TypeAlias = tuple[bool, str, str]
"""Whether it holds, the parameter's name, and what to say if not."""


def check_params(params: SamplingParams, vocab_size: int | None = None) -> EngineError | None:
    """Why `params` make no sense, if so. NaN is outside every range. `vocab_size`: ids run below it; None:
    unknown here."""
    for holds, name, message in _rules(params, vocab_size):
        if not holds:
            return EngineError(code="invalid_request", message=message, param=name)
    return None


def _rules(params: SamplingParams, vocab_size: int | None) -> Iterator[Rule]:
    yield from _lengths(params)
    yield from _draw(params)
    yield from _ends(params)
    yield from _penalties(params)
    yield from _logprobs(params)
    yield from _answers(params)
    if params.grammar is not None:
        yield from _grammar(params.grammar)
        yield from _beside_a_grammar(params, params.grammar)
    if vocab_size is not None:
        yield from _vocabulary("stop_token_ids", params.stop_token_ids, vocab_size)
        yield from _vocabulary("logit_bias", params.logit_bias, vocab_size)


def _lengths(params: SamplingParams) -> Iterator[Rule]:
    most, least = params.max_tokens, params.min_tokens
    yield most is None or most >= 1, "max_tokens", f"max_tokens must be at least 1, not {most}."
    yield least >= 0, "min_tokens", f"min_tokens must be at least 0, not {least}."
    fits = most is None or least <= most
    yield fits, "min_tokens", f"min_tokens, {least}, must not be above max_tokens, {most}."


def _draw(params: SamplingParams) -> Iterator[Rule]:
    heat, top_p, top_k, min_p = params.temperature, params.top_p, params.top_k, params.min_p
    warm = isfinite(heat) and heat >= 0
    yield warm, "temperature", f"temperature must be a finite number of at least 0, not {heat}."
    yield 0 < top_p <= 1, "top_p", f"top_p must be above 0 and at most 1, not {top_p}."
    yield top_k >= 0, "top_k", f"top_k must be at least 0 (0: no limit), not {top_k}."
    yield 0 <= min_p <= 1, "min_p", f"min_p must be between 0 and 1, not {min_p}."
    fits = params.seed is None or SEED_RANGE[0] <= params.seed <= SEED_RANGE[1]
    yield fits, "seed", f"seed must fit in 64 bits, {params.seed} does not."


def _ends(params: SamplingParams) -> Iterator[Rule]:
    yield _at_most("stop", len(params.stop), MAX_STOP_STRINGS, "strings")
    yield all(params.stop), "stop", "A stop string must not be empty."
    yield _at_most("stop_token_ids", len(params.stop_token_ids), MAX_STOP_TOKENS, "ids")
    yield _at_most("bad_words", len(params.bad_words), MAX_BAD_WORDS, "words")
    words = all(word.strip() for word in params.bad_words)
    yield words, "bad_words", "A word of bad_words must not be empty or all spaces."


def _penalties(params: SamplingParams) -> Iterator[Rule]:
    for name in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, name)
        yield -2 <= value <= 2, name, f"{name} must be between -2 and 2, not {value}."
    value = params.repetition_penalty
    name = "repetition_penalty"
    yield 0 < value <= 100, name, f"{name} must be above 0 and at most 100 (1: none), not {value}."
    yield _at_most("logit_bias", len(params.logit_bias), MAX_BIASES, "tokens")
    mild = all(-100 <= amount <= 100 for amount in params.logit_bias.values())
    yield mild, "logit_bias", "A bias must be between -100 and 100."


def _logprobs(params: SamplingParams) -> Iterator[Rule]:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        fits = value is None or 0 <= value <= MAX_LOGPROBS
        yield fits, name, f"{name} must be between 0 and {MAX_LOGPROBS}, not {value}."


def _answers(params: SamplingParams) -> Iterator[Rule]:
    n, best_of = params.n, params.best_of
    yield 1 <= n <= MAX_ANSWERS, "n", f"n must be between 1 and {MAX_ANSWERS}, not {n}."
    fits = best_of is None or n <= best_of <= MAX_ANSWERS
    yield fits, "best_of", f"best_of must be between n, {n}, and {MAX_ANSWERS}, not {best_of}."


def _grammar(grammar: Grammar) -> Iterator[Rule]:
    name = grammar.param
    if grammar.kind == "choice":
        yield bool(grammar.choices), name, f"{name} needs at least one string to choose from."
        yield all(grammar.choices), name, f"{name} must not have an empty string."
    else:
        yield bool(grammar.source.strip()), name, f"{name} is an empty {grammar.kind}."
    size = len(grammar.source) + sum(map(len, grammar.choices))
    yield _at_most(name, size, MAX_GRAMMAR_CHARACTERS, "characters")


def _beside_a_grammar(params: SamplingParams, grammar: Grammar) -> Iterator[Rule]:
    """What would forbid the only token that the grammar lets follow, or go on behind its end."""
    asked = {
        "ignore_eos": params.ignore_eos,
        "min_tokens": params.min_tokens > 0,
        "bad_words": bool(params.bad_words),
    }
    other = "a grammar" if grammar.param == "grammar" else grammar.param
    for name, value in asked.items():
        yield not value, name, f"{name} cannot be combined with {other}: leave one of them out."


def _vocabulary(name: str, ids: Iterable[int], vocab_size: int) -> Iterator[Rule]:
    for token in ids:
        known = 0 <= token < vocab_size
        yield known, name, f"{name} has id {token}, and the vocabulary's ids are 0 to {vocab_size - 1}."


def _at_most(name: str, count: int, limit: int, what: str) -> Rule:
    return count <= limit, name, f"{name} may have at most {limit} {what}, not {count}."
