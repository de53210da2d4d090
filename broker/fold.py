"""The fold: the one function that turns a request's log into what a reader may show.

Gateway, result collector, resuming consumer and tests all read a log through it, so that everybody sees
the same text wherever they attach. Rules (delivery protocol, section 1):

- `started` or `fence` with an epoch at least as high as the highest so far sets it; every event of a
  lower epoch is void;
- a `delta` counts only if its `seq` is the next one, so a duplicate append is void;
- `started` that keeps fewer tokens than there are is a restart: the answer begins anew, `seq` goes on;
- the first valid `finished` or `failed` ends the log, the first valid `moved` says where it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.broker.events import Delta, Event, Failed, Fence, Finished, Moved, Started, Terminal


@dataclass(slots=True)
class Fold:
    """What a reader may show of one request, and what a resuming owner must know."""

    epoch: int = 0
    next_seq: int = 0
    started: Started | None = None
    token_ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    restarts: int = 0
    terminal: Terminal | None = None
    moved: Moved | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def ended(self) -> bool:
        return self.terminal is not None or self.moved is not None

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
            case Moved():
                self.moved = event
        return True

    def _start(self, event: Started) -> None:
        self.epoch = event.epoch
        self.started = event
        if event.kept < len(self.token_ids):
            self.token_ids.clear()
            self.pieces.clear()
            self.restarts += 1

    def _extend(self, event: Delta) -> bool:
        if event.seq != self.next_seq:
            return False
        self.next_seq += 1
        self.token_ids.extend(event.token_ids)
        self.pieces.append(event.text)
        return True


def fold(events: Iterable[Event]) -> Fold:
    """Folds a whole log, given in log order."""
    state = Fold()
    for event in events:
        state.read(event)
    return state
