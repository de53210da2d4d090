"""The checker's own fold: what a log says, and everything in it that may not be.

Written from the protocol's text, not from our code, and in another way: first the epoch in force is worked
out for every entry, then the entries that count are picked, then they are put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tests.faults.checker.events import LogEvent

ANNOUNCES = ("started", "fence")
ENDS = ("finished", "failed")


@dataclass(slots=True)
class Reading:
    """`deltas`: those that count, by `seq`, also those that a restart dropped later. `void`: the others.
    `late`: further terminal records that no newer epoch makes void. `unannounced`: deltas of an epoch that
    nobody had announced."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    end: LogEvent | None = None
    deltas: dict[int, LogEvent] = field(default_factory=dict)
    void: list[LogEvent] = field(default_factory=list)
    late: list[LogEvent] = field(default_factory=list)
    unannounced: list[LogEvent] = field(default_factory=list)
    wrong_kept: list[LogEvent] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    restarts: int = 0


def read_log(events: Sequence[LogEvent]) -> Reading:
    """`events` in log order; on Kafka with the fences of the whole partition among them."""
    raised = [event.epoch if event.kind in ANNOUNCES else 0 for event in events]
    in_force = accumulate(raised, max)
    reading = Reading()
    for event, epoch in zip(events, in_force, strict=True):
        if event.epoch < epoch:
            reading.void.append(event)
        elif reading.end is not None:
            if event.kind in ENDS:
                reading.late.append(event)
        else:
            _take(reading, event, epoch)
    return reading


def _take(reading: Reading, event: LogEvent, in_force: int) -> None:
    match event.kind:
        case "started":
            _start(reading, event)
        case "delta" if event.seq != len(reading.deltas):
            reading.void.append(event)
        case "delta":
            reading.deltas[event.seq] = event
            reading.token_ids += event.token_ids
            reading.text += event.text
            if event.epoch > in_force:
                reading.unannounced.append(event)
        case "finished" | "failed":
            reading.end = event


def _start(reading: Reading, event: LogEvent) -> None:
    reading.epochs.add(event.epoch)
    if event.kept not in (0, len(reading.token_ids)):
        reading.wrong_kept.append(event)
    if event.kept < len(reading.token_ids):
        reading.token_ids.clear()
        reading.text = ""
        reading.restarts += 1
