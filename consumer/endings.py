"""How a request leaves this consumer."""

from __future__ import annotations

import enum

import msgspec

from headrace.broker.events import Terminal


class Exit(enum.Enum):
    """Settled with its terminal record (or none, where the log has one), moved to the dead letters, handed
    back to the queue at once or for later, handed to another pool, or forgotten because somebody else owns
    it."""

    DONE = "done"
    DEAD_LETTER = "dead letter"
    RELEASE = "release"
    RETRY = "retry"
    MOVE = "move"
    DROP = "drop"


class Ending(msgspec.Struct, frozen=True):
    """`delay_ms`: of a retry. `pool`: where it is passed on to."""

    exit: Exit
    terminal: Terminal | None = None
    reason: str = ""
    delay_ms: int = 0
    pool: str = ""
