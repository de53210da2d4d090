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
from dataclasses import dataclass

from msgspec import structs

from headrace.broker.events import Delta, Event, Started, TokenLogprobs
from headrace.broker.fold import Fold
from headrace.consumer.unsent import Unsent
from headrace.consumer.written import Written


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When tokens that nobody streams are written: see `PublishSettings`. `first_s`: how long `started` and
    the first of them wait for more; an answer that is whole by then goes with its end, in one call."""

    tokens: int = 32
    seconds: float = 1.0
    first_s: float = 0.2


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
        "epoch",
        "next_seq",
        "stated",
        "written",
    )

    def __init__(self, epoch: int, state: Fold) -> None:
        self.epoch = epoch
        self.next_seq = state.next_seq
        self._base = Written.of(state)  # what the log held at the open
        self.written = self._base.copy()  # what it holds
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
        self._unsent = Unsent()
        self._oldest = 0.0

    def mark(self, started: Started, now: float) -> None:
        """The log is to say at once who has the request, before its body is read: `started` without a
        fingerprint, that keeps all."""
        assert not started.fingerprint
        assert started.kept == self._base.num_tokens
        self.begin(started, now)
        self._pressing = True

    def begin(self, started: Started, now: float) -> None:
        """Takes `started` as the next thing to write, before any token. `kept` is all that the log holds, or
        0. `now`: seconds, any fixed clock."""
        assert started.epoch == self.epoch
        assert started.kept in (0, self._base.num_tokens)
        assert not self._wire
        self.written = self._base.copy() if started.kept == self._base.num_tokens else Written()
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
        self._unsent.add(choice, token_ids, text, logprobs, prompt_logprobs)

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
        if urgent or self._restate or self._pressing or self._unsent.num_tokens >= rules.tokens:
            return float("-inf")
        is_first = self._announce or not self._first_sent
        return self._oldest + (rules.first_s if is_first else rules.seconds)

    def take(self) -> tuple[Event, ...]:
        """Puts all that is unsent on the wire: at most one delta of each answer, a `started` before and one
        behind them."""
        assert not self._wire
        num_logged = self.written.num_tokens
        num_sent = num_logged + self._unsent.num_tokens
        deltas = self._unsent.take(self.epoch, self.next_seq)
        before = [self._statement(num_logged)] if self._announce else []
        behind = [self._statement(num_sent)] if self._restate and (deltas or not self._announce) else []
        if deltas:
            self._first_sent, self._pressing = True, self._restate
        self._announce = self._restate = False
        self._wire = (*before, *deltas, *behind)
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
                self.written.add(event)
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
        ours = self.written if self._began else self._base
        if state.next_seq != self.next_seq or not ours.has_same_tokens(Written.of(state)):
            return False
        self.epoch = epoch
        if self._started is not None:
            self._started = structs.replace(self._started, epoch=epoch, at_ms=now_ms)
            self._announce = self._pressing = True
        return True

    def discard(self, epoch: int) -> None:
        """Forgets what is unsent: the log, held under `epoch` now, cannot be continued with it."""
        self.epoch = epoch
        self._unsent, self._wire = Unsent(), ()
        self._announce = self._restate = False

    @property
    def _has_something(self) -> bool:
        return self._announce or self._restate or bool(self._unsent)

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
                    self._unsent.put_back(event)
        self._wire = ()


def _same(one: Started, other: Event) -> bool:
    """Whether they are the same entry, or say the same, judged by what tells the `started` of one request
    apart."""
    return isinstance(other, Started) and _marks(one) == _marks(other)


def _marks(started: Started) -> tuple[object, ...]:
    past = started.deaths, started.lone_deaths, started.alone
    return (started.epoch, started.kept, started.fingerprint, *past)
