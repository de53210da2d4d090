"""Whether a reader was shown exactly what the log says, once, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tests.faults.checker.reading import Reading
from tests.faults.checker.record import Shown, Transcript

Flaw: TypeAlias = str


def flaws(transcript: Transcript, reading: Reading) -> list[Flaw]:
    """What is wrong with a transcript, held against the log as it stands after the run."""
    found = [*_disorder(transcript), *_foreign(transcript, reading)]
    if not transcript.left:
        found += _incomplete(transcript, reading)
    return found


def _disorder(transcript: Transcript) -> Iterator[Flaw]:
    """By itself, without a look at the log: no step back, no gap, nothing behind the end."""
    epoch, due, tokens, ended = 0, 0, 0, False
    for event in transcript.shown:
        if ended:
            yield f"{event.kind} was shown after the end"
        if event.epoch < epoch:
            yield f"epoch fell from {epoch} to {event.epoch}"
        epoch = max(epoch, event.epoch)
        match event.kind:
            case "delta" if event.seq < due:
                yield f"delta {event.seq} was shown twice"
            case "delta":
                if event.seq > due:
                    yield f"deltas {due} to {event.seq - 1} were never shown"
                due, tokens = event.seq + 1, tokens + len(event.token_ids)
            case "restarted":
                tokens = 0
            case "started" if event.kept != tokens:
                yield f"a take-over keeps {event.kept} tokens, {tokens} were shown"
            case "finished" | "failed":
                ended = True


def _foreign(transcript: Transcript, reading: Reading) -> Iterator[Flaw]:
    """Every delta must be the one of the log, of an epoch that was in force when it was written."""
    void = {(event.epoch, event.seq, event.token_ids) for event in reading.void if event.kind == "delta"}
    for event in _deltas(transcript):
        valid = reading.deltas.get(event.seq)
        if valid is not None and _same(event, valid.epoch, valid.token_ids, valid.text):
            continue
        is_void = (event.epoch, event.seq, event.token_ids) in void
        why = "void, its epoch was overtaken" if is_void else "not in the log"
        yield f"delta {event.seq} of epoch {event.epoch} was shown, and is {why}"


def _incomplete(transcript: Transcript, reading: Reading) -> Iterator[Flaw]:
    text, token_ids = "", list[int]()
    for event in transcript.shown:
        if event.kind == "restarted":
            text, token_ids = "", []
        elif event.kind == "delta":
            text, token_ids = text + event.text, token_ids + list(event.token_ids)
    if text != reading.text or token_ids != reading.token_ids:
        yield f"{len(token_ids)} tokens were shown, the log holds {len(reading.token_ids)}, or others"
    ends = [event.reason for event in transcript.shown if event.kind in ("finished", "failed")]
    due = [] if reading.end is None else [reading.end.reason]
    if ends != due:
        yield f"the ends {ends} were shown, the log ends with {due}"


def _deltas(transcript: Transcript) -> Iterator[Shown]:
    return (event for event in transcript.shown if event.kind == "delta")


def _same(event: Shown, epoch: int, token_ids: tuple[int, ...], text: str) -> bool:
    return (event.epoch, event.token_ids, event.text) == (epoch, token_ids, text)
