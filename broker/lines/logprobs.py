"""Log probabilities in the forms of the OpenAI API, from the ids that a log holds.

Chat: {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}], "refusal"}
Completions: {"tokens", "token_logprobs", "top_logprobs": [{token: logprob}], "text_offset"}

`bytes` is null where a token is only a part of a character, which has no text of its own. Tokens that look
the same (two halves of characters) are one entry in a completion's `top_logprobs`, the likelier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from headrace.broker.events import TokenLogprobs

Spell: TypeAlias = Callable[[int], str]
"""A token's text by itself."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def chat_logprobs(scores: Sequence[TokenLogprobs], spell: Spell) -> dict[str, object] | None:
    """None where there are none, as where none were asked for."""
    if not scores:
        return None
    content = [
        {
            **_entry(spell(score.token), score.logprob),
            "top_logprobs": [_entry(spell(token), logprob) for token, logprob in score.top],
        }
        for score in scores
    ]
    return {"content": content, "refusal": None}


def text_logprobs(scores: Sequence[TokenLogprobs], spell: Spell) -> dict[str, object] | None:
    """`text_offset` counts the characters of the tokens before, each spelled alone."""
    if not scores:
        return None
    tokens = [spell(score.token) for score in scores]
    return {
        "tokens": tokens,
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_by_text(score, spell) for score in scores],
        "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
    }


def _entry(text: str, logprob: float) -> dict[str, object]:
    data = None if _BROKEN in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": data}


def _by_text(score: TokenLogprobs, spell: Spell) -> dict[str, float]:
    """The chosen token is among them, likely or not, as in the API."""
    best: dict[str, float] = {}
    for token, logprob in (*score.top, (score.token, score.logprob)):
        best.setdefault(spell(token), logprob)
    return best
