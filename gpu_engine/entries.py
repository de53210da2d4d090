"""What requests have brought so far, kept until it is fetched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace.gpu_engine.api import EngineError, Output, TokenLogprobs


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer. `finish_reason` (`stop`, `length`, `abort`) is set, or `error` is; an answer that
    failed on its way keeps what it had. `text` ends before a stop string, `token_ids` with the last made.
    `logprobs` and `prompt_logprobs` as in `Output`. Of `n` answers this is number `index`, and the first one
    holds the `others`. `embedding`: of a text that was embedded."""

    id: str
    prompt_ids: list[int] = []
    token_ids: list[int] = []
    text: str = ""
    finish_reason: str | None = None
    error: EngineError | None = None
    cached_tokens: int = 0
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs] = []
    index: int = 0
    others: list[Completion] = []
    embedding: list[float] = []


@dataclass(slots=True)
class Answer:
    """One answer so far."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    final: Output | None = None

    def take(self, output: Output) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        if output.text:
            self.pieces.append(output.text)
        if output.is_last:
            self.final = output


@dataclass(slots=True)
class Mark:
    """How much of one answer a reader has seen."""

    tokens: int = 0
    pieces: int = 0
    ended: bool = False


class Entry:
    """The answers to one request. `changed` is notified under the manager's lock, which guards all of it."""

    def __init__(self, name: str, prompt_ids: list[int], num_answers: int, lock: threading.Lock) -> None:
        self.id = name
        self.prompt_ids = prompt_ids
        self.answers = [Answer() for _ in range(num_answers)]
        self._changed = threading.Condition(lock)

    @property
    def ended(self) -> bool:
        return all(answer.final is not None for answer in self.answers)

    def take(self, output: Output) -> None:
        answer = self.answers[output.index]
        if answer.final is None:
            answer.take(output)
            self._changed.notify_all()

    def fail(self, error: EngineError) -> None:
        """Ends what has not ended."""
        for index in range(len(self.answers)):
            self.take(Output(id=self.id, index=index, error=error))

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._changed.wait_for(condition, timeout)

    def news(self, marks: list[Mark]) -> list[Output]:
        """What came since `marks`, one for each answer, which are moved on."""
        fresh = [i for i, answer in enumerate(self.answers) if _has_news(answer, marks[i])]
        return [self._since(i, marks[i]) for i in fresh]

    def has_news(self, marks: list[Mark]) -> bool:
        return any(_has_news(answer, mark) for answer, mark in zip(self.answers, marks, strict=True))

    def _since(self, index: int, mark: Mark) -> Output:
        answer, seen = self.answers[index], Mark(mark.tokens, mark.pieces)
        mark.tokens, mark.pieces = len(answer.token_ids), len(answer.pieces)
        mark.ended = answer.final is not None
        return Output(
            id=self.id,
            token_ids=answer.token_ids[seen.tokens :],
            text="".join(answer.pieces[seen.pieces :]),
            finish_reason=answer.final.finish_reason if answer.final else None,
            error=answer.final.error if answer.final else None,
            cached_tokens=answer.final.cached_tokens if answer.final else 0,
            embedding=answer.final.embedding if answer.final else [],
            logprobs=answer.logprobs[seen.tokens :],
            prompt_logprobs=[] if seen.tokens else answer.prompt_logprobs,
            index=index,
        )

    def completion(self) -> Completion:
        first, *others = [self._complete(index) for index in range(len(self.answers))]
        return msgspec.structs.replace(first, others=others) if others else first

    def _complete(self, index: int) -> Completion:
        answer = self.answers[index]
        assert answer.final is not None, "a completion is made of an answer that has ended"
        return Completion(
            id=self.id,
            prompt_ids=self.prompt_ids,
            token_ids=answer.token_ids,
            text="".join(answer.pieces),
            finish_reason=answer.final.finish_reason,
            error=answer.final.error,
            cached_tokens=answer.final.cached_tokens,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.prompt_logprobs,
            index=index,
            embedding=answer.final.embedding,
        )


def _has_news(answer: Answer, mark: Mark) -> bool:
    ended = answer.final is not None and not mark.ended
    return ended or len(answer.token_ids) > mark.tokens or len(answer.pieces) > mark.pieces
