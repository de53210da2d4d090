"""Folds with one rule broken each. A property of the fold is worth what it says to these."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.events import Delta, Event, Failed, Fence, Finished, Started
from headrace.broker.fold import Fold


class BelievesAnyEpoch(Fold):
    """No epoch check: a late owner's events count."""

    def read(self, event: Event) -> bool:
        highest, self.epoch = self.epoch, 0
        counts = Fold.read(self, event)
        self.epoch = max(highest, self.epoch)
        return counts


class LateStartedWins(Fold):
    """A `started` of a lower epoch sets the epoch."""

    def read(self, event: Event) -> bool:
        if isinstance(event, Started):
            self.epoch = min(self.epoch, event.epoch)
        return Fold.read(self, event)


class LateTerminalCounts(Fold):
    """A terminal record of a lower epoch ends the log."""

    def read(self, event: Event) -> bool:
        if isinstance(event, Finished | Failed):
            self.epoch = min(self.epoch, event.epoch)
        return Fold.read(self, event)


class BelievesAnyNumber(Fold):
    """A delta counts whatever its `seq`."""

    def read(self, event: Event) -> bool:
        if isinstance(event, Delta):
            self.next_seq = event.seq
        return Fold.read(self, event)


class TerminalIsNotFinal(Fold):
    """Events count after the end."""

    def read(self, event: Event) -> bool:
        self.terminal = None
        return Fold.read(self, event)


class RestartClearsNothing(Fold):
    """What was shown before a restart stays."""

    def read(self, event: Event) -> bool:
        tokens, pieces = list(self.token_ids), list(self.pieces)
        counts = Fold.read(self, event)
        if isinstance(event, Started):
            self.token_ids, self.pieces = tokens, pieces
        return counts


class RestartCountsAnew(Fold):
    """Numbers begin at 0 after a restart."""

    def read(self, event: Event) -> bool:
        before = self.restarts
        counts = Fold.read(self, event)
        if self.restarts > before:
            self.next_seq = 0
        return counts


class EveryStartIsARestart(Fold):
    """A resume drops what was shown, too."""

    def read(self, event: Event) -> bool:
        counts = Fold.read(self, event)
        if counts and isinstance(event, Started):
            self.token_ids.clear()
            self.pieces.clear()
        return counts


class IgnoresFences(Fold):
    """Only `started` raises the epoch."""

    def read(self, event: Event) -> bool:
        return False if isinstance(event, Fence) else Fold.read(self, event)


class RefusesItsOwnEpoch(Fold):
    """An event must have a higher epoch than the one in force."""

    def read(self, event: Event) -> bool:
        return event.epoch > self.epoch and Fold.read(self, event)


FOLD_MUTANTS: Mapping[str, type[Fold]] = {
    mutant.__name__: mutant
    for mutant in (
        BelievesAnyEpoch,
        LateStartedWins,
        LateTerminalCounts,
        BelievesAnyNumber,
        TerminalIsNotFinal,
        RestartClearsNothing,
        RestartCountsAnew,
        EveryStartIsARestart,
        IgnoresFences,
        RefusesItsOwnEpoch,
    )
}
