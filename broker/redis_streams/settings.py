"""How long things are kept, and how large the shared streams grow."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.broker.errors import BrokerError

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """Times in milliseconds. The queue, retries, dead letters, and logs without a terminal record have no
    limit: nothing that was accepted goes away by itself.

    `log_ms`: log and index of a request after its terminal record; while they live, the same id is the
    same request. `results_ms`: age of lines in the default result topic. `reply_ms`: a reply topic after
    its last line. `feed_length`: appends that one feed holds for readers before they must re-read the
    log. `control_length`: cancellations that a consumer can be behind.

    Raises BrokerError for a time that is too long: the server would refuse it, in the middle of a script.
    """

    log_ms: int = _DAY_MS
    results_ms: int = 7 * _DAY_MS
    reply_ms: int = 7 * _DAY_MS
    feed_length: int = 4096
    control_length: int = 10_000

    def __post_init__(self) -> None:
        for name in ("log_ms", "results_ms", "reply_ms"):
            if not 0 < getattr(self, name) <= LONGEST_KEPT_S * 1000:
                raise BrokerError(f"{name} must be above 0 and at most {LONGEST_KEPT_S * 1000} (ten years)")
