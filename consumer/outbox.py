"""What one request still has to write into its log. A pure state machine: no clock, no broker.

    add ──► unsent ──take──► wire ──acknowledged──► logged
              ▲               │
              └─── reopened ──┘   its fate was unknown, and the log shows that it is not there

At most one append of a request is on the wire, so its fate is told by the log alone: by the last `started`,
or by the number of the next delta. Tokens that arrive meanwhile coalesce into one delta.

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
        "_base_characters",
        "_began",
        "_first_sent",
        "_ids",
        "_logprobs",
        "_oldest",
        "_pieces",
        "_pressing",
        "_restate",
        "_started",
        "_wire",
        "characters",
        "epoch",
        "logged",
        "next_seq",
        "stated",
    )

    def __init__(self, epoch: int, state: Fold) -> None:
        self.epoch = epoch
        self.next_seq = state.next_seq
        self.logged = list(state.token_ids)  # tokens of the answer that the log holds
        self.characters = len(state.text)  # of its text there
        self._base = list(state.token_ids)  # what it held at the open
        self._base_characters = self.characters
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
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._oldest = 0.0

    def mark(self, started: Started, now: float) -> None:
        """The log is to say at once who has the request, before its body is read: `started` without a
        fingerprint, that keeps all."""
        assert not started.fingerprint
        assert started.kept == len(self._base)
        self.begin(started, now)
        self._pressing = True

    def begin(self, started: Started, now: float) -> None:
        """Takes `started` as the next thing to write, before any token. `kept` is all that the log holds, or
        0. `now`: seconds, any fixed clock."""
        assert started.epoch == self.epoch
        assert started.kept in (0, len(self._base))
        assert not self._wire
        self.logged = self._base[: started.kept]
        self.characters = self._base_characters if started.kept == len(self._base) else 0
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
        self, token_ids: Sequence[int], text: str, now: float, logprobs: Sequence[TokenLogprobs] = ()
    ) -> None:
        """Tokens of one step, with the text that they made certain. `now`: the clock of `begin`."""
        if not token_ids and not text:
            return
        if not self._unsent:
            self._oldest = now
        self._ids.extend(token_ids)
        self._pieces.append(text)
        self._logprobs.extend(logprobs)

    @property
    def empty(self) -> bool:
        """Nothing left to write, nothing unacknowledged."""
        return not (self._wire or self._unsent)

    @property
    def on_wire(self) -> bool:
        """An append is unacknowledged."""
        return bool(self._wire)

    def due_at(self, rules: Checkpoints, *, urgent: bool) -> float | None:
        """When the next append is due, in the clock of `add`; None: nothing to send, or one is on the wire.

        At once: what is `urgent` (somebody streams, or the request ends), and whatever follows a death, or
        may do so. Soon: `started`, and the first delta of a run. Else by the checkpoint rules.
        """
        if self._wire or not self._unsent:
            return None
        if urgent or self._restate or self._pressing or len(self._ids) >= rules.tokens:
            return float("-inf")
        is_first = self._announce or not self._first_sent
        return self._oldest + (rules.first_s if is_first else rules.seconds)

    def take(self) -> tuple[Event, ...]:
        """Puts all that is unsent on the wire: at most one delta, a `started` before and one behind it."""
        assert not self._wire
        events: list[Event] = []
        if self._announce:
            events.append(self._statement(len(self.logged)))
        if self._has_delta:
            events.append(self._delta())
        if self._restate and (self._has_delta or not self._announce):
            events.append(self._statement(len(self.logged) + len(self._ids)))
        if self._has_delta:
            self._first_sent, self._pressing = True, self._restate
        self._ids, self._pieces, self._logprobs = [], [], []
        self._announce = self._restate = False
        self._wire = tuple(events)
        return self._wire

    def acknowledged(self) -> None:
        """What was on the wire stands in the log."""
        for event in self._wire:
            match event:
                case Started():
                    self._began, self.stated = True, event
                case Delta():
                    self.logged.extend(event.token_ids)
                    self.characters += len(event.text)
                    self.next_seq = event.seq + 1
        self._wire = ()

    def reopened(self, epoch: int, state: Fold, now_ms: int) -> bool:
        """Goes on under a new epoch after an append of unknown fate; `state` is the log up to the new fence.

        False: the log holds something else than what this run wrote, it cannot be continued. Otherwise a
        new `started` that keeps everything stands first in line, so that the fold learns the new epoch.
        """
        if self._wire_landed(state):
            self.acknowledged()
        else:
            self._put_back()
        if state.next_seq != self.next_seq or state.token_ids != (self.logged if self._began else self._base):
            return False
        self.epoch = epoch
        if self._started is not None:
            self._started = structs.replace(self._started, epoch=epoch, at_ms=now_ms)
            self._announce = self._pressing = True
        return True

    def discard(self, epoch: int) -> None:
        """Forgets what is unsent: the log, held under `epoch` now, cannot be continued with it."""
        self.epoch = epoch
        self._ids, self._pieces, self._logprobs, self._wire = [], [], [], ()
        self._announce = self._restate = False

    @property
    def _has_delta(self) -> bool:
        return bool(self._pieces)

    @property
    def _unsent(self) -> bool:
        return self._announce or self._restate or self._has_delta

    def _delta(self) -> Delta:
        text = "".join(self._pieces)
        logprobs = tuple(self._logprobs)
        return Delta(self.epoch, self.next_seq, tuple(self._ids), text, logprobs=logprobs)

    def _statement(self, kept: int) -> Started:
        assert self._started is not None
        return structs.replace(self._started, kept=kept)

    def _wire_landed(self, state: Fold) -> bool:
        """All events of an append are in the log, or none."""
        for event in self._wire:
            if isinstance(event, Delta):
                return state.next_seq > event.seq
        return not self._wire or (state.started is not None and _same(state.started, self._wire[-1]))

    def _put_back(self) -> None:
        for place, event in enumerate(self._wire):
            match event:
                case Started() if place == 0:
                    self._announce = True
                case Started():
                    self._restate = True
                case Delta():
                    self._ids[:0] = event.token_ids
                    self._pieces.insert(0, event.text)
                    self._logprobs[:0] = event.logprobs
        self._wire = ()


def _same(one: Started, other: Event) -> bool:
    """Whether they are the same entry, or say the same, judged by what tells the `started` of one request
    apart."""
    return isinstance(other, Started) and _marks(one) == _marks(other)


def _marks(started: Started) -> tuple[object, ...]:
    past = started.deaths, started.lone_deaths, started.alone
    return (started.epoch, started.kept, started.fingerprint, *past)
