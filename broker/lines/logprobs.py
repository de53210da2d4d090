"""Log probabilities in the forms of the OpenAI API, from the ids that a log holds.

Chat: {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}], "refusal"}
Completions: {"tokens", "token_logprobs", "top_logprobs": [{token: logprob}], "text_offset"}

The prompt's own, as vLLM tells them: [null, {token id: {"logprob", "rank", "decoded_token"}}, …], an entry
for each token; `rank` is null for one that is not among the likeliest. Of an echoed prompt they stand before
those of the completion; the first token has null.

`bytes` is null where a token is only a part of a character, which has no text of its own. Tokens that look
the same (two halves of characters) are one entry in a completion's `top_logprobs`: the chosen one, or else
the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from headrace.broker.events import TokenLogprobs

Spell: TypeAlias = Callable[[int], str]
"""A token's text by itself."""


class Prompt(NamedTuple):
    """A prompt's tokens, and the scores of all but the first."""

    token_ids: Sequence[int]
    scores: Sequence[TokenLogprobs]


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


def text_logprobs(
    scores: Sequence[TokenLogprobs], spell: Spell, echoed: Prompt | None = None, count: int = 0
) -> dict[str, object] | None:
    """`text_offset` counts the characters of the tokens before, each spelled alone. `echoed`: the prompt that
    the text begins with, told with `count` of the likeliest beside each."""
    if not scores:
        return None
    unscored = [] if echoed is None else echoed.token_ids[:1]
    scores = [*(_cut(score, count) for score in (echoed.scores if echoed else ())), *scores]
    tokens = [*map(spell, unscored), *(spell(score.token) for score in scores)]
    nothing = [None] * len(unscored)
    return {
        "tokens": tokens,
        "token_logprobs": [*nothing, *(score.logprob for score in scores)],
        "top_logprobs": [*nothing, *(_by_text(score, spell) for score in scores)],
        "text_offset": list(accumulate(map(len, tokens), initial=0))[:-1],
    }


def prompt_logprobs(prompt: Prompt, count: int, spell: Spell) -> list[dict[str, object] | None]:
    """With `count` of the likeliest beside each."""
    return [None, *(_by_id(_cut(score, count), spell) for score in prompt.scores)]


def _by_id(score: TokenLogprobs, spell: Spell) -> dict[str, object]:
    ranks = {token: rank for rank, (token, _) in enumerate(score.top, start=1)}
    told = {score.token: score.logprob, **dict(score.top)}
    return {
        str(token): {"logprob": logprob, "rank": ranks.get(token), "decoded_token": spell(token)}
        for token, logprob in told.items()
    }


def _cut(score: TokenLogprobs, count: int) -> TokenLogprobs:
    return TokenLogprobs(score.token, score.logprob, score.top[:count])


def _entry(text: str, logprob: float) -> dict[str, object]:
    data = None if _BROKEN in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": data}


def _by_text(score: TokenLogprobs, spell: Spell) -> dict[str, float]:
    """The chosen token is among them, likely or not, as in the API."""
    best: dict[str, float] = {}
    for token, logprob in score.top:
        best.setdefault(spell(token), logprob)
    return best | {spell(score.token): score.logprob}
