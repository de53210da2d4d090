"""What one request still has to write into its log. A pure state machine: no clock, no broker.

    add ──► unsent ──take──► wire ──acknowledged──► logged
              ▲               │
              └─── reopened ──┘   its fate was unknown, and the log shows that it is not there

At most one append of a request is on the wire, so its fate is told by the log alone: by the last `started`,
or by the number of the next delta. Tokens that arrive meanwhile coalesce into one delta, of each answer where
the request asks for several.

`started` is written several times: under a new epoch it comes before the tokens (the fold must learn the
epoch), and when the engine died behind them (what follows was made by the next engine):

    started{epoch 1}  delta  delta                started{epoch 1, deaths 1}  delta …
                                    ▲ engine died

Where an owner may have died of the body, one without a fingerprint comes first (`mark`), and the other one
once the body was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from headrace.broker.events import Delta, Event, Started, TokenLogprobs
from headrace.broker.fold import Fold


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When tokens that nobody streams are written: see `PublishSettings`. `first_s`: how long `started` and
    the first of them wait for more; an answer that is whole by then goes with its end, in one call."""

    tokens: int = 32
    seconds: float = 1.0
    first_s: float = 0.2


@dataclass(slots=True)
class Written:
    """What the log holds of one answer."""

    token_ids: list[int] = field(default_factory=list)
    characters: int = 0


@dataclass(slots=True)
class Unsent:
    """What it lacks of one answer."""

    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def put_back(self, delta: Delta) -> None:
        self.token_ids[:0] = delta.token_ids
        self.pieces.insert(0, delta.text)
        self.logprobs[:0] = delta.logprobs
        self.prompt_logprobs[:0] = delta.prompt_logprobs


class Outbox:
    """The log side of one request, from its `open` on. `state`: the fold that `open` returned."""

    __slots__ = (
        "_announce",
        "_base",
        "_began",
        "_first_sent",
        "_oldest",
        "_pressing",
        "_restate",
        "_started",
        "_unsent",
        "_wire",
        "_written",
        "epoch",
        "next_seq",
        "stated",
    )

    def __init__(self, epoch: int, state: Fold) -> None:
        self.epoch = epoch
        self.next_seq = state.next_seq
        self._base = _written_in(state)  # what the log held at the open, by the answers' numbers
        self._written = _copy_of(self._base)  # what it holds
        self._began = False  # our `started` stands in the log
        self._started: Started | None = None  # what it says, or will
        self.stated: Started | None = None  # what the log has of it
        self._announce = False  # it is to be written before the tokens
        self._restate = False  # it is to be written behind them
        self._wire: tuple[Event, ...] = ()
        self._first_sent = False  # a delta of this run was taken
        # The next one goes at once: also where somebody may have opened the request before and died of it,
        # since deaths are counted by `started`. (On Redis each request has its own epochs.)
        self._pressing = epoch > 1
        self._unsent: dict[int, Unsent] = {}  # by the answers' numbers
        self._oldest = 0.0

    @property
    def num_logged(self) -> int:
        """Tokens that the log holds, of all answers."""
        return _count(self._written)

    def written(self, choice: int = 0) -> Written:
        """What the log holds of an answer."""
        return self._written.get(choice) or Written()

    def mark(self, started: Started, now: float) -> None:
        """The log is to say at once who has the request, before its body is read: `started` without a
        fingerprint, that keeps all."""
        assert not started.fingerprint
        assert started.kept == _count(self._base)
        self.begin(started, now)
        self._pressing = True

    def begin(self, started: Started, now: float) -> None:
        """Takes `started` as the next thing to write, before any token. `kept` is all that the log holds, or
        0. `now`: seconds, any fixed clock."""
        assert started.epoch == self.epoch
        assert started.kept in (0, _count(self._base))
        assert not self._wire
        self._written = _copy_of(self._base) if started.kept == _count(self._base) else {}
        self._began, self._started, self._announce, self._oldest = False, started, True, now

    def restate(self, *, deaths: int, lone_deaths: int, alone: bool) -> None:
        """The log is to say anew what is known of the request's past, behind the tokens so far. The next
        token goes at once: it clears the request, and the log shall know."""
        assert self._started is not None
        self._started = structs.replace(self._started, deaths=deaths, lone_deaths=lone_deaths, alone=alone)
        self._restate, self._pressing = True, True

    def cleared(self) -> None:
        """A token came since the last death: it says all, and nothing is held against the request any
        more."""
        assert self._started is not None
        self._started = structs.replace(self._started, deaths=0, lone_deaths=0, alone=False)
        self._restate = False

    def add(
        self,
        token_ids: Sequence[int],
        text: str,
        now: float,
        logprobs: Sequence[TokenLogprobs] = (),
        *,
        choice: int = 0,
        prompt_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """Tokens of one step, with the text that they made certain. `now`: the clock of `begin`."""
        if not token_ids and not text:
            return
        if not self._has_something:
            self._oldest = now
        unsent = self._unsent.setdefault(choice, Unsent())
        unsent.token_ids.extend(token_ids)
        unsent.pieces.append(text)
        unsent.logprobs.extend(logprobs)
        unsent.prompt_logprobs.extend(prompt_logprobs)

    @property
    def empty(self) -> bool:
        """Nothing left to write, nothing unacknowledged."""
        return not (self._wire or self._has_something)

    @property
    def on_wire(self) -> bool:
        """An append is unacknowledged."""
        return bool(self._wire)

    def due_at(self, rules: Checkpoints, *, urgent: bool) -> float | None:
        """When the next append is due, in the clock of `add`; None: nothing to send, or one is on the wire.

        At once: what is `urgent` (somebody streams, or the request ends), and whatever follows a death, or
        may do so. Soon: `started`, and the first delta of a run. Else by the checkpoint rules.
        """
        if self._wire or not self._has_something:
            return None
        if urgent or self._restate or self._pressing or self._num_unsent >= rules.tokens:
            return float("-inf")
        is_first = self._announce or not self._first_sent
        return self._oldest + (rules.first_s if is_first else rules.seconds)

    def take(self) -> tuple[Event, ...]:
        """Puts all that is unsent on the wire: at most one delta of each answer, a `started` before and one
        behind them."""
        assert not self._wire
        events: list[Event] = []
        if self._announce:
            events.append(self._statement(self.num_logged))
        events += self._deltas()
        if self._restate and (self._unsent or not self._announce):
            events.append(self._statement(self.num_logged + self._num_unsent))
        if self._unsent:
            self._first_sent, self._pressing = True, self._restate
        self._unsent = {}
        self._announce = self._restate = False
        self._wire = tuple(events)
        return self._wire

    def acknowledged(self) -> None:
        """What was on the wire stands in the log."""
        for event in self._wire:
            self._landed(event)
        self._wire = ()

    def _landed(self, event: Event) -> None:
        match event:
            case Started():
                self._began, self.stated = True, event
            case Delta():
                written = self._written.setdefault(event.choice, Written())
                written.token_ids.extend(event.token_ids)
                written.characters += len(event.text)
                self.next_seq = event.seq + 1

    def reopened(self, epoch: int, state: Fold, now_ms: int) -> bool:
        """Goes on under a new epoch after an append of unknown fate; `state` is the log up to the new fence.

        False: the log holds something else than what this run wrote, it cannot be continued. Otherwise a
        new `started` that keeps everything stands first in line, so that the fold learns the new epoch.
        """
        if self._wire_landed(state):
            self.acknowledged()
        else:
            self._put_back(state)
        ours = self._written if self._began else self._base
        if state.next_seq != self.next_seq or _tokens(_written_in(state)) != _tokens(ours):
            return False
        self.epoch = epoch
        if self._started is not None:
            self._started = structs.replace(self._started, epoch=epoch, at_ms=now_ms)
            self._announce = self._pressing = True
        return True

    def discard(self, epoch: int) -> None:
        """Forgets what is unsent: the log, held under `epoch` now, cannot be continued with it."""
        self.epoch = epoch
        self._unsent, self._wire = {}, ()
        self._announce = self._restate = False

    @property
    def _has_something(self) -> bool:
        return self._announce or self._restate or bool(self._unsent)

    @property
    def _num_unsent(self) -> int:
        return sum(len(unsent.token_ids) for unsent in self._unsent.values())

    def _deltas(self) -> list[Delta]:
        return [
            Delta(
                self.epoch,
                seq,
                tuple(unsent.token_ids),
                "".join(unsent.pieces),
                choice,
                tuple(unsent.logprobs),
                tuple(unsent.prompt_logprobs),
            )
            for seq, (choice, unsent) in enumerate(sorted(self._unsent.items()), start=self.next_seq)
        ]

    def _statement(self, kept: int) -> Started:
        assert self._started is not None
        return structs.replace(self._started, kept=kept)

    def _wire_landed(self, state: Fold) -> bool:
        """Whether all events of an append are in the log."""
        deltas = [event for event in self._wire if isinstance(event, Delta)]
        if deltas:
            return state.next_seq > deltas[-1].seq
        return not self._wire or (state.started is not None and _same(state.started, self._wire[-1]))

    def _put_back(self, state: Fold) -> None:
        """All but a front part, which Kafka may have stored by itself."""
        began = state.started is not None and _same(state.started, self._wire[0])
        for place, event in enumerate(self._wire):
            match event:
                case Started() if place == 0 and (began or state.next_seq > self.next_seq):
                    self._landed(event)
                case Started() if place == 0:
                    self._announce = True
                case Started():
                    self._restate = True
                case Delta() if event.seq < state.next_seq:
                    self._landed(event)
                case Delta():
                    self._unsent.setdefault(event.choice, Unsent()).put_back(event)
        self._wire = ()


def _written_in(state: Fold) -> dict[int, Written]:
    answers = state.answers.items()
    return {number: Written(list(answer.token_ids), len(answer.text)) for number, answer in answers}


def _copy_of(written: dict[int, Written]) -> dict[int, Written]:
    return {number: Written(list(one.token_ids), one.characters) for number, one in written.items()}


def _count(written: dict[int, Written]) -> int:
    return sum(len(one.token_ids) for one in written.values())


def _tokens(written: dict[int, Written]) -> dict[int, list[int]]:
    """Of answers that have any."""
    return {number: one.token_ids for number, one in written.items() if one.token_ids}


def _same(one: Started, other: Event) -> bool:
    """Whether they are the same entry, or say the same, judged by what tells the `started` of one request
    apart."""
    return isinstance(other, Started) and _marks(one) == _marks(other)


def _marks(started: Started) -> tuple[object, ...]:
    past = started.deaths, started.lone_deaths, started.alone
    return (started.epoch, started.kept, started.fingerprint, *past)
