"""How long things are kept, and how large the shared streams grow."""

from __future__ import annotations

from dataclasses import dataclass

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """Times in milliseconds. The queue, retries, dead letters, and logs without a terminal record have no
    limit: nothing that was accepted goes away by itself.

    `log_ms`: log and index of a request after its terminal record; while they live, the same id is the
    same request. `results_ms`: age of lines in the default result topic. `reply_ms`: a reply topic after
    its last line. `feed_length`: appends that one feed holds for readers before they must re-read the
    log. `control_length`: cancellations that a consumer can be behind.
    """

    log_ms: int = _DAY_MS
    results_ms: int = 7 * _DAY_MS
    reply_ms: int = 7 * _DAY_MS
    feed_length: int = 4096
    control_length: int = 10_000
