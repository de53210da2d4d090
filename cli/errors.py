"""How a command ends when it cannot do what it was asked."""

from __future__ import annotations

import enum

from headrace.cli.interrupts import INTERRUPTED_STATUS

# Before the one sentence that a command ends with when it fails.
SENTENCE = "headrace: "


class ExitCode(enum.IntEnum):
    """What scripts may rely on."""

    OK = 0
    SOME_FAILED = 1
    COULD_NOT_RUN = 2
    OUR_BUG = 70  # EX_SOFTWARE of sysexits.h
    UNREACHABLE = 75  # EX_TEMPFAIL: a service found no broker that answers; start it again after a while
    INTERRUPTED = INTERRUPTED_STATUS


class Mistake(Exception):
    """Something the user can put right; the text is one sentence that says how."""
