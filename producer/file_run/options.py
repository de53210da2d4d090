"""What a file run is told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.blobs import BlobStore
from headrace.broker.lines.strict_json import MAX_LINE_BYTES
from headrace.broker.message import Lane
from headrace.producer.backoff import RetryPolicy


class FileRunError(Exception):
    """The run cannot start or go on; the text says what to do. What OUT holds is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRunOptions:
    """One run of one input file.

    `model` stands for all that the answers depend on besides the lines themselves (model, engine options):
    a run is taken up again only under the same. `prefix` is the broker's. `window` bounds the requests in
    flight, and with them the memory: the file itself is streamed. `policy`: how long to bear a broker that
    is away; `pulse_s`: how often to see whether it is. `quiet_s`: how long the reply topic must be still
    before a resumed run publishes, or a request that has ended without a result line is asked anew. `blobs`:
    where bodies above its threshold go (None: all travel in their messages).
    """

    input: Path
    output: Path
    model: str = ""
    prefix: str = "headrace"
    lane: Lane = Lane.BATCH
    window: int = 256
    max_line_bytes: int = MAX_LINE_BYTES
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    pulse_s: float = 5.0
    quiet_s: float = 0.5
    blobs: BlobStore | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands. `done` counts answers and `failed` error lines, both with those of earlier starts
    (`resumed` of them together); tokens are those of all lines in OUT; `elapsed_s` is of this start."""

    total: int
    done: int
    failed: int
    resumed: int
    prompt_tokens: int
    completion_tokens: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Summary(Progress):
    """How a run ended: `done + failed == total`."""

    run_id: str
