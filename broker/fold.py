"""The fold: the one function that turns a request's log into what a reader may show.

Gateway, result collector, resuming consumer and tests all read a log through it, so that everybody sees
the same text wherever they attach. Rules (delivery protocol, section 1):

- `started` or `fence` with an epoch at least as high as the highest so far sets it; every event of a
  lower epoch is void;
- a `delta` counts only if its `seq` is the next one, so a duplicate append is void;
- `started` that keeps fewer tokens than there are is a restart: the answer begins anew, `seq` goes on;
- `started` without a fingerprint (a mark) counts for epoch and deaths alone, its owner has not read the body
  yet: seed and fingerprint stay those of the one before, and nobody is shown it;
- the first valid `finished` or `failed` ends the log;
- `moved` with the place of another log says that it goes on there, where epochs begin anew: another partition
  counts its own. Whoever reads a log feeds the fold nothing of the old place behind the first valid one;
- `handed` says that the owner that began it last gave it up in order. An owner that wrote neither that nor an
  end has died; one that gives up before it began says nothing of those before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec import structs

from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Handed,
    Moved,
    Started,
    Terminal,
    TokenLogprobs,
)


class Deaths(msgspec.Struct, frozen=True):
    """Owners and engines that died with the request, in a row, without a token of it in between. `lone`:
    those of them that ran nothing else, the only ones that prove anything."""

    all: int = 0
    lone: int = 0


@dataclass(slots=True)
class Answer:
    """One of several answers. `logprobs`: one for each token, or none."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Fold:
    """What a reader may show of one request, and what a resuming owner must know. Its own tokens and text are
    those of answer 0; `others` has the rest, by their number, where the request asks for several."""

    epoch: int = 0
    next_seq: int = 0
    started: Started | None = None
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one for each token, or none
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    others: dict[int, Answer] = field(default_factory=dict)
    restarts: int = 0
    terminal: Terminal | None = None
    moved: Moved | None = None
    handed: Handed | None = None  # since the last `started`
    put_off: Handed | None = None  # likewise, by whoever: also by an owner that gave up before it began
    tokens_at_start: int = 0

    @property
    def deaths(self) -> Deaths:
        """What whoever takes the request over now must hold against it."""
        last = self.started
        if last is None or self.num_tokens > self.tokens_at_start:
            return Deaths()
        if self.handed is not None:
            return Deaths(last.deaths, last.lone_deaths)
        return Deaths(last.deaths + 1, last.lone_deaths + last.alone)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return len(self.token_ids) + sum(len(answer.token_ids) for answer in self.others.values())

    @property
    def answers(self) -> dict[int, Answer]:
        """All of them, by their number; answer 0 is always there."""
        return {0: Answer(self.token_ids, self.pieces, self.logprobs), **self.others}

    @property
    def ended(self) -> bool:
        return self.terminal is not None

    def read(self, event: Event) -> bool:
        """Takes the next event of the log; returns whether it counts. Void events change nothing."""
        if self.ended or event.epoch < self.epoch:
            return False
        match event:
            case Started():
                self._start(event)
            case Fence():
                self.epoch = event.epoch
            case Delta():
                return self._extend(event)
            case Finished() | Failed():
                self.terminal = event
            case Handed():
                self.put_off = event
                if self.started is not None and self.started.epoch == event.epoch:
                    self.handed = event
            case Moved():
                self.moved = event
                self.epoch = 0 if event.log else self.epoch
        return True

    def _start(self, event: Started) -> None:
        self.epoch = event.epoch
        self.started = self._of_the_past(event) if event.is_mark else event
        if event.kept < self.num_tokens:
            for gone in (self.token_ids, self.pieces, self.logprobs, self.prompt_logprobs, self.others):
                gone.clear()
            self.restarts += 1
        self.handed, self.put_off, self.tokens_at_start = None, None, self.num_tokens

    def _of_the_past(self, event: Started) -> Started:
        """With what is known of the answer."""
        last = self.started
        if last is None:
            return event
        return structs.replace(event, seed=last.seed, fingerprint=last.fingerprint)

    def _extend(self, event: Delta) -> bool:
        if event.seq != self.next_seq:
            return False
        self.next_seq += 1
        self.prompt_logprobs.extend(event.prompt_logprobs)
        answer = self.others.setdefault(event.choice, Answer()) if event.choice else self
        answer.token_ids.extend(event.token_ids)
        answer.pieces.append(event.text)
        answer.logprobs.extend(event.logprobs)
        return True


def fold(events: Iterable[Event]) -> Fold:
    """Folds a whole log, given in log order."""
    state = Fold()
    for event in events:
        state.read(event)
    return state
