"""What one request still has to write into its log. A pure state machine: no clock, no broker.

    add ──► unsent ──take──► wire ──acknowledged──► logged
              ▲               │
              └─── reopened ──┘   its fate was unknown, and the log shows that it is not there

At most one append of a request is on the wire, so its fate is told by the log alone: by the epoch of the
last `started`, or by the number of the next delta. Tokens that arrive meanwhile coalesce into one delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.broker.events import Delta, Event, Started
from headrace.broker.fold import Fold


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """When tokens that nobody streams are written: see `PublishSettings`."""

    tokens: int = 32
    seconds: float = 1.0


class Outbox:
    """The log side of one request, from its `open` on. `state`: the fold that `open` returned."""

    __slots__ = (
        "_base",
        "_began",
        "_first_sent",
        "_ids",
        "_oldest",
        "_pieces",
        "_started",
        "_unsent_started",
        "_wire",
        "epoch",
        "logged",
        "next_seq",
    )

    def __init__(self, epoch: int, state: Fold) -> None:
        self.epoch = epoch
        self.next_seq = state.next_seq
        self.logged = list(state.token_ids)  # tokens of the answer that the log holds
        self._base = list(state.token_ids)  # what it held at the open
        self._began = False  # our `started` stands in the log
        self._started: Started | None = None
        self._unsent_started = False
        self._wire: tuple[Event, ...] = ()
        self._first_sent = False  # a delta of this run was taken
        self._ids: list[int] = []
        self._pieces: list[str] = []
        self._oldest = 0.0

    def begin(self, started: Started) -> None:
        """Takes `started` as the first thing to write. `kept` is all that the log holds, or 0."""
        assert started.epoch == self.epoch
        assert started.kept in (0, len(self._base))
        self.logged = self._base[: started.kept]
        self._started, self._unsent_started = started, True

    def add(self, token_ids: Sequence[int], text: str, now: float) -> None:
        """Tokens of one step, with the text that they made certain. `now`: seconds, any fixed clock."""
        if not token_ids and not text:
            return
        if not self._has_delta:
            self._oldest = now
        self._ids.extend(token_ids)
        self._pieces.append(text)

    @property
    def empty(self) -> bool:
        """Nothing left to write, nothing unacknowledged."""
        return not (self._wire or self._unsent_started or self._has_delta)

    def due_at(self, rules: Checkpoints, *, urgent: bool) -> float | None:
        """When the next append is due, in the clock of `add`; None: nothing to send, or one is on the wire.

        At once: `started`, the first delta of a run, and whatever is `urgent` (somebody streams, or the
        request ends). Else by the checkpoint rules.
        """
        if self._wire or not (self._unsent_started or self._has_delta):
            return None
        if urgent or self._unsent_started or not self._first_sent or len(self._ids) >= rules.tokens:
            return float("-inf")
        return self._oldest + rules.seconds

    def take(self) -> tuple[Event, ...]:
        """Puts all that is unsent on the wire, as at most one `started` and one delta."""
        assert not self._wire
        events: list[Event] = []
        if self._unsent_started:
            assert self._started is not None
            events.append(self._started)
        if self._has_delta:
            events.append(Delta(self.epoch, self.next_seq, tuple(self._ids), "".join(self._pieces)))
            self._ids, self._pieces, self._first_sent = [], [], True
        self._unsent_started = False
        self._wire = tuple(events)
        return self._wire

    def acknowledged(self) -> None:
        """What was on the wire stands in the log."""
        for event in self._wire:
            match event:
                case Started():
                    self._began = True
                case Delta():
                    self.logged.extend(event.token_ids)
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
            self._started = replace(self._started, epoch=epoch, kept=len(self.logged), at_ms=now_ms)
            self._unsent_started = True
        return True

    def discard(self, epoch: int) -> None:
        """Forgets what is unsent: the log, held under `epoch` now, cannot be continued with it."""
        self.epoch = epoch
        self._ids, self._pieces, self._wire, self._unsent_started = [], [], (), False

    @property
    def _has_delta(self) -> bool:
        return bool(self._pieces)

    def _wire_landed(self, state: Fold) -> bool:
        for event in self._wire:
            match event:
                case Started():
                    return state.started is not None and state.started.epoch == event.epoch
                case Delta():
                    return state.next_seq > event.seq
        return True

    def _put_back(self) -> None:
        for event in self._wire:
            match event:
                case Started():
                    self._unsent_started = True
                case Delta():
                    self._ids[:0] = event.token_ids
                    self._pieces.insert(0, event.text)
        self._wire = ()
