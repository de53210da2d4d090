"""The answers to one request, as far as they have come: kept tokens of earlier owners, and received ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from struct import pack
from typing import NamedTuple

from headrace.broker import fold
from headrace.broker.events import TokenLogprobs
from headrace.consumer.logprobs import logged
from headrace.gpu_engine.api import Output
from headrace.gpu_engine.sampling.check import MAX_ANSWERS


class Fresh(NamedTuple):
    """What an output brings of one answer, as the log is to have it."""

    token_ids: Sequence[int]
    text: str
    logprobs: Sequence[TokenLogprobs]
    prompt_logprobs: Sequence[TokenLogprobs]


@dataclass(slots=True)
class Answer:
    """Tokens, their text, and their log probabilities: one for each token, or none.

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

    def square(self, replayed: str) -> str:
        """Squares the text in the log with `replayed`: what the engine takes as shown for the same tokens.
        Returns what the log lacks of it.

        They differ where the last owner wrote all of an answer, the held-back end of its text included, and
        died before it settled: the engine will give that end again.
        """
        logged_length = len(self.text)
        self.skip = max(0, logged_length - len(replayed))
        return self._show(replayed[logged_length:])

    def take(self, output: Output) -> Fresh:
        """Goes on by what `output` brings."""
        self.cached_tokens = output.cached_tokens
        shown, self.skip = output.text[self.skip :], max(0, self.skip - len(output.text))
        logprobs = [logged(each) for each in output.logprobs]
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(logprobs)
        of_prompt = [logged(each) for each in output.prompt_logprobs]
        return Fresh(output.token_ids, self._show(shown), logprobs, of_prompt)

    def _show(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text


class Answers:
    """All of them, by their number; of texts that are embedded there is one for each. `logged`: what the log
    holds of them. `prompt_logprobs`: of the prompt that they share."""

    def __init__(self, logged: Sequence[Answer] = (), prompt_logprobs: Sequence[TokenLogprobs] = ()) -> None:
        self._each = list(logged) or [Answer()]
        self._num_open = len(self._each)  # the engine is to bring their ends
        self.prompt_logprobs = list(prompt_logprobs)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._each)

    def __len__(self) -> int:
        return len(self._each)

    def __getitem__(self, number: int) -> Answer:
        return self._each[number]

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self._each)

    def token_ids(self) -> list[list[int]]:
        """A copy of the tokens of each."""
        return [answer.token_ids.copy() for answer in self._each]

    def begin(self, wanted: int, *, keeps: bool) -> None:
        """So many are `wanted`. `keeps`: they go on from what the log holds, else anew."""
        known = self._each[:wanted] if keeps else []
        self._each = [*known, *(Answer() for _ in range(wanted - len(known)))]
        self._num_open = wanted
        if not keeps:
            self.prompt_logprobs = []

    def take(self, output: Output) -> Fresh:
        """What one step brought for one of them."""
        fresh = self._each[output.index].take(output)
        self.prompt_logprobs.extend(fresh.prompt_logprobs)
        return fresh

    def end(self, output: Output) -> None:
        """`output` is the last one of an answer."""
        answer = self._each[output.index]
        answer.reason, answer.embedding = output.finish_reason, output.embedding
        self._num_open -= 1

    @property
    def all_ended(self) -> bool:
        return not self._num_open

    @property
    def others_are_open(self) -> bool:
        """The engine has not said its last word of all of them, but for one that has failed now."""
        return self._num_open > 1

    def reasons(self) -> tuple[str, ...]:
        """How they ended, all of them."""
        return tuple(str(answer.reason) for answer in self._each)

    def vectors(self) -> tuple[bytes, ...]:
        """Of embedded texts, as a log holds them."""
        return tuple(_bytes_of(answer.embedding) for answer in self._each if answer.embedding)

    def cached_tokens(self, *, one_prompt: bool) -> int:
        """Of their prompts; `one_prompt`: they share one."""
        return sum(answer.cached_tokens for answer in (self._each[:1] if one_prompt else self._each))


def answers_in(state: fold.Fold) -> Answers:
    """What a log holds of them; no request has more than an engine gives."""
    known = state.answers
    each = [known.get(number, fold.Answer()) for number in range(min(MAX_ANSWERS, 1 + max(known)))]
    copies = [Answer(list(one.token_ids), list(one.pieces), list(one.logprobs)) for one in each]
    return Answers(copies, state.prompt_logprobs)


def _bytes_of(vector: Sequence[float]) -> bytes:
    return pack(f"<{len(vector)}f", *vector)
