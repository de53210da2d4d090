"""What a session may be asked to write: our own invariants, the same for every broker."""

from __future__ import annotations

from headrace.broker.contract import Append, DeadLetter, Done, PassOn, Settlement
from headrace.broker.events import Terminal


def check_append(item: Append) -> None:
    """Asserts that its events are those of its epoch, and none of them ends the log."""
    assert all(event.epoch == item.epoch for event in item.events), "events of another epoch"
    assert not any(isinstance(event, Terminal) for event in item.events), "terminal records are settled"


def check_settlement(epoch: int, settlement: Settlement) -> None:
    """Asserts that what it writes belongs to the epoch that `open` gave (0: it was not opened)."""
    terminal = settlement.terminal if isinstance(settlement, Done | DeadLetter) else None
    assert terminal is None or terminal.epoch == epoch > 0, "a terminal record needs the epoch of `open`"
    events = settlement.events if isinstance(settlement, Done) else ()
    assert all(event.epoch == epoch for event in events), "events of another epoch"
    assert terminal is not None or not events, "append what comes before no terminal record"
    if isinstance(settlement, PassOn):
        assert epoch > 0, "its log says that it was passed on: open it first"
