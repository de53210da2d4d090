"""Whether a log begins with the events that somebody found of it.

A fold that misses the first ones takes those that follow for void, and shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.events import Delta, Event, Failed, Finished, Handed, Moved, Started


def is_beginning(events: Iterable[Event], delivery: str | None = None) -> bool | None:
    """Whether nothing that a reader is shown stands before these events of one log; None: they do not tell
    yet. `delivery`: that which must have begun it. A `started` that keeps nothing may be a restart, so only
    the number of the first delta is proof; or that no delta follows it, for what it does not keep is gone."""
    begun = False
    for event in events:
        match event:
            case Started(kept=0) if delivery in (None, event.delivery):
                begun = True
            case Handed():
                continue
            case Delta():
                return event.seq == 0
            case Finished() | Failed() | Moved():
                return begun
            case _:
                return False
    return None


def is_cut(events: Iterable[Event]) -> bool:
    """Whether these events prove that others stand before them: tokens are missing."""
    for event in events:
        match event:
            case Started():
                if event.kept:
                    return True
            case Handed():
                continue
            case Delta():
                return event.seq > 0
            case _:
                return False
    return False
