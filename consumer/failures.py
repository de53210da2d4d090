"""What happens when something goes wrong: one table for the whole consumer (delivery protocol, section 5).

| kind        | examples                                            | what happens                     |
|-------------|-----------------------------------------------------|----------------------------------|
| INVALID     | bad parameter, too long, model of nobody, blob gone,| fails at once, never retried     |
|             | a result, or a request that must go on elsewhere or |                                  |
|             | later, that is larger than the broker takes         |                                  |
| UNREADABLE  | bytes that are no message                           | dead letter with its reason      |
| OVERDUE     | waited longer than it may, engine's own queue full  | fails at once, 429               |
| STOPPED     | cancelled, deadline passed                          | ends with the text so far        |
| SMALLER     | the engine runs out of memory                       | it preempts and goes on          |
| TRANSIENT   | blob store or registry away, log of a newer version | retried, up to its deadline (1)  |
| ENGINE_DIED | segfault, hang (`watchdog`)                         | engine restarts, requests go on  |
| ENGINE_SICK | it died too often in a short time                   | all handed back, process ends    |
| POISON      | engine, or its reader, died N times with it alone   | dead letter with the numbers     |
| BUG         | an error of ours, or of the engine                  | fails at once, 500               |
| CONFLICT    | its id belongs to another body                      | dead letter, nothing in that log |
| FENCED      | lower epoch, lost lease, refused settle             | dropped silently, counted        |

(1) By exponential backoff with full jitter, see `retries`. A broker that is away is no failure of a request:
calls are repeated until it is back (`outage`).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from headrace.broker.events import Terminal
from headrace.broker.fold import Deaths
from headrace.broker.lines.request import LineError
from headrace.broker.message import Lane
from headrace.consumer.endings import Ending, Exit
from headrace.gpu_engine.api import EngineError

BAD_REQUEST = 400
NOT_FOUND = 404
TOO_MANY = 429
INTERNAL = 500
RESULT_TOO_LARGE = "result_too_large"


class Kind(enum.Enum):
    INVALID = "invalid"
    UNREADABLE = "unreadable"
    OVERDUE = "overdue"
    STOPPED = "stopped"
    SMALLER = "smaller"
    TRANSIENT = "transient"
    ENGINE_DIED = "engine died"
    ENGINE_SICK = "engine sick"
    POISON = "poison"
    BUG = "bug"
    CONFLICT = "conflict"
    FENCED = "fenced"


# The table. None: the request stays, what went wrong is cured around it.
POLICY: Mapping[Kind, Exit | None] = MappingProxyType(
    {
        Kind.INVALID: Exit.DONE,
        Kind.UNREADABLE: Exit.DEAD_LETTER,
        Kind.OVERDUE: Exit.DONE,
        Kind.STOPPED: Exit.DONE,
        Kind.SMALLER: None,
        Kind.TRANSIENT: Exit.RETRY,
        Kind.ENGINE_DIED: None,
        Kind.ENGINE_SICK: Exit.RELEASE,
        Kind.POISON: Exit.DEAD_LETTER,
        Kind.BUG: Exit.DONE,
        Kind.CONFLICT: Exit.DEAD_LETTER,
        Kind.FENCED: Exit.DROP,
    }
)

# These have no say in the log: it is somebody else's, or the request goes on.
_WITHOUT_TERMINAL = (Exit.RETRY, Exit.RELEASE, Exit.DROP)


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong with one request. `code`, `message`, `status` (HTTP class, 0: none) and
    `param` are those of its terminal record, where it gets one; `delay_ms` is that of a retry."""

    kind: Kind
    code: str = ""
    message: str = ""
    status: int = 0
    param: str = ""
    delay_ms: int = 0

    @property
    def exit(self) -> Exit | None:
        return POLICY[self.kind]

    @property
    def terminal(self) -> bool:
        """Whether the log gets a terminal record for it."""
        return self.kind is not Kind.CONFLICT and self.exit not in (None, *_WITHOUT_TERMINAL)

    def ending(self, terminal: Terminal | None = None) -> Ending:
        """How a request that it ends leaves."""
        assert self.exit is not None, f"{self.kind} ends no request"
        return Ending(self.exit, terminal, self.message, self.delay_ms)


CANCELLED = Failure(Kind.STOPPED, "cancelled", "the request was cancelled")
EXPIRED = Failure(Kind.STOPPED, "expired", "the deadline of the request passed before it was finished")
CONFLICT = Failure(Kind.CONFLICT, message="its id belongs to a request with another body")
GIVEN_UP = Failure(Kind.BUG, "internal_error", "the engine gave the request up; send it again", INTERNAL)
BROKEN_BY_US = LineError("internal_error", "the request could not be prepared; this is a bug of ours")


def fenced(reason: str) -> Failure:
    """Somebody else owns it."""
    return Failure(Kind.FENCED, message=reason)


def refused(error: LineError) -> Failure:
    """The message holds no request that can be run."""
    param = error.param or ""
    if error.unreadable:
        return Failure(Kind.UNREADABLE, error.code, error.message, BAD_REQUEST, param)
    if error.code == "internal_error":
        return Failure(Kind.BUG, error.code, error.message, INTERNAL, param)
    return Failure(Kind.INVALID, error.code, error.message, BAD_REQUEST, param)


def is_bug(error: EngineError) -> bool:
    """Whether a step of the engine failed; every other error says that a request was not taken in."""
    return error.code == "internal_error"


def refused_by_engine(error: EngineError, param: str) -> Failure:
    """`param`: what the user calls the parameter that the engine names."""
    if is_bug(error):
        return Failure(Kind.BUG, error.code, error.message, INTERNAL, param)
    if error.code == "rate_limit_exceeded":
        return Failure(Kind.OVERDUE, error.code, error.message, TOO_MANY)
    return Failure(Kind.INVALID, error.code, error.message, BAD_REQUEST, param)


def result_too_large() -> Failure:
    """The broker takes no message of that size. Nothing of the result is kept but what the log has."""
    message = (
        "the result is larger than the broker takes: ask for less in one request (fewer answers, texts or "
        "log probabilities)"
    )
    return Failure(Kind.INVALID, RESULT_TOO_LARGE, message, BAD_REQUEST)


def too_large_to_go() -> Failure:
    """It stands where it was published by somebody who may write more than we can send on."""
    message = (
        "the request must go on elsewhere, or later, and is larger than the broker lets us send on: put its "
        "body into the blob store"
    )
    return Failure(Kind.INVALID, "request_too_large", message, BAD_REQUEST)


def nobody_serves(model: str, served: Sequence[str]) -> Failure:
    """`served`: what can be had instead, at least one name."""
    names = ", ".join(repr(name) for name in served)
    message = f"the model {model[:100]!r} is not served here; served: {names}"
    return Failure(Kind.INVALID, "model_not_found", message, NOT_FOUND, "model")


def body_gone(reason: str) -> Failure:
    """The body, which lies in the blob store, cannot be had any more, or is not what was published."""
    return Failure(Kind.INVALID, "body_unavailable", reason, BAD_REQUEST)


def overdue(lane: Lane, waited_ms: int, limit_ms: int) -> Failure:
    message = (
        f"the request waited {waited_ms / 1000:.1f} s in the lane {lane.value}, where it may wait "
        f"{limit_ms / 1000:.1f} s for its start; send it again later"
    )
    return Failure(Kind.OVERDUE, "queue_timeout", message, TOO_MANY)


def poison(deaths: Deaths, *, was_read: bool = True) -> Failure:
    """`was_read`: by one of its owners at least, so that it was the engine that died of it."""
    message = (
        f"the engine died {deaths.lone} times with this request alone in it, "
        f"and {deaths.all} times in a row without a token of it"
        if was_read
        else f"{deaths.lone} consumers died while they read this request alone, {deaths.all} in a row with it"
    )
    return Failure(Kind.POISON, "poisoned", message, INTERNAL)


def transient(reason: str, delay_ms: int) -> Failure:
    """What waiting may cure; `retries` says for how long."""
    return Failure(Kind.TRANSIENT, message=reason, delay_ms=delay_ms)
