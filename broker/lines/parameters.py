"""The sampling parameters of a request body: types, ranges, and how unset is told from set.

`null` always means unset. Booleans are no numbers, and `5.0` is no integer (as in the OpenAI API).
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.lines.grammar import read_grammar
from headrace.broker.lines.refused import invalid, shown, type_name
from headrace.broker.lines.request import Sampling
from headrace.broker.lines.values import MAX_TOKEN_ID, to_boolean, to_token_ids

MAX_STOPS = 16
MAX_STOP_TOKENS = 128
MAX_BAD_WORDS = 256
MAX_BIASES = 1024
MAX_LOGPROBS = 20
MAX_ANSWERS = 128
_MAX_TOKENS = 2**31 - 1
_SEED_BITS = 64
_LONGEST_ID = 20  # characters: Python takes no number of thousands of them


def read_sampling(body: Mapping[str, object], *, is_chat: bool) -> Sampling:
    """The sampling parameters that `body`, of a chat or a completion, sets; `Refused` for the first one that
    is wrong.

    `max_completion_tokens` is the newer name of `max_tokens` and wins over it. `top_k` -1 means off, like
    0. Negative seeds, which the OpenAI API allows, are taken modulo 2**64.
    """
    older = read_integer(body, "max_tokens", 1, _MAX_TOKENS)
    newer = read_integer(body, "max_completion_tokens", 1, _MAX_TOKENS)
    top_k = read_integer(body, "top_k", -1, _MAX_TOKENS)
    seed = read_integer(body, "seed", -(2 ** (_SEED_BITS - 1)), 2**_SEED_BITS - 1)
    return Sampling(
        max_tokens=older if newer is None else newer,
        temperature=read_number(body, "temperature", 0, 2),
        top_p=_above_zero("top_p", read_number(body, "top_p", 0, 1)),
        top_k=0 if top_k == -1 else top_k,
        min_p=read_number(body, "min_p", 0, 1),
        seed=None if seed is None else seed % 2**_SEED_BITS,
        stop=read_stop(body.get("stop")),
        ignore_eos=read_boolean(body, "ignore_eos") or False,
        presence_penalty=read_number(body, "presence_penalty", -2, 2),
        frequency_penalty=read_number(body, "frequency_penalty", -2, 2),
        repetition_penalty=_above_zero("repetition_penalty", read_number(body, "repetition_penalty", 0, 100)),
        logit_bias=read_logit_bias(body.get("logit_bias")),
        bad_words=read_bad_words(body.get("bad_words")),
        min_tokens=read_integer(body, "min_tokens", 0, _MAX_TOKENS),
        stop_token_ids=read_stop_token_ids(body.get("stop_token_ids")),
        include_stop_str_in_output=read_boolean(body, "include_stop_str_in_output") or False,
        echo=read_boolean(body, "echo") or False,
        grammar=read_grammar(body),
        logprobs=read_logprobs(body, is_chat=is_chat),
        n=read_integer(body, "n", 1, MAX_ANSWERS),
        best_of=read_best_of(body),
        prompt_logprobs=read_integer(body, "prompt_logprobs", 0, MAX_LOGPROBS),
        skip_special_tokens=read_boolean(body, "skip_special_tokens"),
    )


def read_integer(body: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise invalid(name, f"must be an integer, not {type_name(value)}")
    if value < low:
        raise invalid(name, f"must be at least {low}, not {shown(value)}")
    if value > high:
        raise invalid(name, f"must be at most {high}, not {shown(value)}")
    return value


def read_number(body: Mapping[str, object], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(name, f"must be a number, not {type_name(value)}")
    if not low <= value <= high:  # also refuses the NaN that a protobuf double can hold
        raise invalid(name, f"must be between {low} and {high}, not {shown(value)}")
    return float(value)


def read_boolean(body: Mapping[str, object], name: str) -> bool | None:
    return to_boolean(name, body.get(name))


def read_stop(value: object) -> tuple[str, ...]:
    """One stop string or a list of up to 16; empty ones would stop before the first token."""
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop", "must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"may hold at most {MAX_STOPS} strings, not {len(stops)}")
    if "" in stops:
        raise invalid("stop", "must not hold an empty string")
    return tuple(stops)


def read_logprobs(body: Mapping[str, object], *, is_chat: bool) -> int | None:
    """How many of the likeliest tokens to tell beside each: `logprobs` is that number for completions; for
    chats it is a switch, and `top_logprobs` the number."""
    asked = body.get("logprobs")
    if not is_chat:
        return None if asked is False else read_integer(body, "logprobs", 0, MAX_LOGPROBS)
    wanted = read_boolean(body, "logprobs") or False
    count = read_integer(body, "top_logprobs", 0, MAX_LOGPROBS)
    if count and not wanted:
        raise invalid("top_logprobs", "needs logprobs to be true")
    return (count or 0) if wanted else None


def read_best_of(body: Mapping[str, object]) -> int | None:
    """How many answers to make for the `n` best of them."""
    n = read_integer(body, "n", 1, MAX_ANSWERS) or 1
    best_of = read_integer(body, "best_of", 1, MAX_ANSWERS)
    if best_of is not None and best_of < n:
        raise invalid("best_of", f"must be at least n, which is {n}, not {best_of}")
    return best_of


def read_bad_words(value: object) -> tuple[str, ...]:
    """Up to 256 words; those without a letter would forbid all spaces."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise invalid("bad_words", "must be a list of strings")
    if len(value) > MAX_BAD_WORDS:
        raise invalid("bad_words", f"may hold at most {MAX_BAD_WORDS} words, not {len(value)}")
    if not all(word.strip() for word in value):
        raise invalid("bad_words", "must not hold an empty word")
    return tuple(value)


def read_stop_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise invalid("stop_token_ids", "must be a list of integers")
    if len(value) > MAX_STOP_TOKENS:
        raise invalid("stop_token_ids", f"may hold at most {MAX_STOP_TOKENS} ids, not {len(value)}")
    return tuple(to_token_ids("stop_token_ids", value))


def read_logit_bias(value: object) -> dict[int, float]:
    """Token ids, which JSON writes as strings, to numbers between -100 and 100; zeros say nothing."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid("logit_bias", f"must be an object, not {type_name(value)}")
    if len(value) > MAX_BIASES:
        raise invalid("logit_bias", f"may hold at most {MAX_BIASES} tokens, not {len(value)}")
    biases = {_token_id(token): _bias(bias) for token, bias in value.items()}
    return {token: bias for token, bias in biases.items() if bias}


def _bias(value: object) -> float:
    number = read_number({"logit_bias": value}, "logit_bias", -100, 100)
    return 0.0 if number is None else number


def _token_id(text: str) -> int:
    if len(text) <= _LONGEST_ID and text.isascii() and text.isdigit() and int(text) <= MAX_TOKEN_ID:
        return int(text)
    raise invalid("logit_bias", f"must have token ids for its names, not {shown(text)}")


def _above_zero(name: str, value: float | None) -> float | None:
    if value == 0:
        raise invalid(name, "must be above 0 (for greedy answers set temperature 0)")
    return value
