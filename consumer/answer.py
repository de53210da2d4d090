"""One of the answers to a request, as far as it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.broker import fold
from headrace.broker.events import TokenLogprobs


@dataclass(slots=True)
class Answer:
    """Kept tokens and received ones, their text, and their log probabilities: one for each token, or none.

    `skip`: characters at the front of the engine's text that the log holds already. `reason`: how the engine
    said that it ended. `embedding`: of a text that is embedded, which has nothing else.
    """

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    skip: int = 0
    reason: str | None = None
    cached_tokens: int = 0
    embedding: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def answers_in(state: fold.Fold, most: int) -> list[Answer]:
    """What a log holds of the answers, of which there are `most` at most."""
    known = state.answers
    count = min(most, 1 + max(known))
    logged = [known.get(number, fold.Answer()) for number in range(count)]
    return [Answer(list(one.token_ids), list(one.pieces), list(one.logprobs)) for one in logged]
