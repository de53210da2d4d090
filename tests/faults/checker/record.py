"""What the driver of a run writes down: the checker's only knowledge of what should have happened."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

COMPLETE = ("length", "stop")
Kind: TypeAlias = Literal["started", "delta", "restarted", "finished", "failed"]


class Accepted(msgspec.Struct, frozen=True):
    """A publish that the broker or a gateway has acknowledged.

    `answer`: the text of an undisturbed run. `ends`: reasons of terminal records that are right for it, those
    of complete answers (`length`, `stop`) or codes of failures (`cancelled`, `expired`, `poison`, …).
    `certain` False: no answer came to the publish, so that it may stand on the queue or not. `body`: its
    bytes where the driver made them. `topic`: where its result line is due ('': the results of all).
    `streamed`: with chunks of the answer before it.
    """

    request_id: str
    answer: str
    ends: tuple[str, ...] = COMPLETE
    custom_id: str = ""
    tenant: str = ""
    lane: str = "batch"
    topic: str = ""
    certain: bool = True
    body: bytes | None = None
    streamed: bool = False


class Rubbish(msgspec.Struct, frozen=True):
    """Bytes that no consumer may run: they must stand in the dead letters, once, with a reason that holds
    the text `because`."""

    body: bytes
    because: str = ""


class Shown(msgspec.Struct, frozen=True):
    """One event as a reader got it. `at_s`: by the driver's monotonic clock. `reason`: of the end."""

    kind: Kind
    epoch: int
    seq: int = 0
    kept: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    reason: str = ""
    consumer: str = ""
    at_s: float = 0.0


class Transcript(msgspec.Struct, frozen=True):
    """All that one reader was shown of one answer, over all its attachments. `left`: it went away before the
    end, so that only what it saw can be judged."""

    request_id: str
    shown: tuple[Shown, ...]
    tenant: str = ""
    left: bool = False


class RunRecord(msgspec.Struct):
    """One run. `others`: further clients used the same prefix, so unknown requests are no violation."""

    accepted: list[Accepted] = msgspec.field(default_factory=list)
    rubbish: list[Rubbish] = msgspec.field(default_factory=list)
    transcripts: list[Transcript] = msgspec.field(default_factory=list)
    others: bool = False


def write_record(record: RunRecord, path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(record)))


def read_record(path: Path) -> RunRecord:
    return msgspec.json.decode(path.read_bytes(), type=RunRecord)
