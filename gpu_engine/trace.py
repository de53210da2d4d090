"""A line for each step: who ran with how many tokens, and how full the KV memory was.

The file holds JSON lines: first a `TraceHeader`, then a `StepRecord` for each step. `headrace trace` draws
it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # whoever draws a trace need not load what an engine is made of
    from headrace.gpu_engine.memory.kv_memory import KVMemory
    from headrace.gpu_engine.scheduling.scheduler import Scheduler
    from headrace.gpu_engine.scheduling.step import StepPlan, StepResult
    from headrace.gpu_engine.steps import Steps

VERSION: Final = 1
FLUSH_S: Final = 0.05
"""Lines are written when this long has passed since the last time, or when the trace is closed."""

_LOG: Final = logging.getLogger(__name__)


class TraceError(Exception):
    """The trace cannot be written or read; the text is a sentence for the user."""


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that was traced: KV memory of `blocks` blocks of `block_size` tokens."""

    headrace_trace: int = VERSION
    blocks: int
    block_size: int
    max_batch_size: int
    max_batch_tokens: int
    policy: str


class StepRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step: it ended `at_ms` after the trace began and took `ms`, planning included. `ran`: tokens by
    request, prompt and decode alike. `used`: blocks held in it. `preempted` requests lost their place just
    before it; `swapped_out` and `swapped_in` blocks were copied. Of the tokens that ran, `drafted` were
    guesses, and `accepted` of those right."""

    step: int
    at_ms: float
    ms: float
    ran: dict[str, int]
    used: int
    waiting: int = 0
    preempted: list[str] = []
    swapped_out: int = 0
    swapped_in: int = 0
    drafted: int = 0
    accepted: int = 0


class TraceFile:
    """Writes a trace, some lines at a time; `{pid}` in its path stands for this process, since engines of
    several consumers must not share a file. Raises TraceError where the file cannot be opened."""

    def __init__(self, path: str, header: TraceHeader) -> None:
        try:
            place = Path(path.replace("{pid}", str(os.getpid()))).expanduser()
            self._file: IO[bytes] = place.open("wb")
        except OSError as error:
            raise TraceError(
                f"The trace cannot be written to {path} ({error.strerror}); name another file."
            ) from error
        self._is_broken = False
        self._encoder = msgspec.json.Encoder()
        self._flushed = float("-inf")
        self.close = weakref.finalize(self, self._file.close)
        self._write(header)

    def add(self, record: StepRecord, now: float) -> None:
        """`now`: seconds on any clock. Where the disk is full the trace ends, and nothing else."""
        if self._is_broken:
            return
        try:
            self._write(record)
            if now - self._flushed >= FLUSH_S:
                self._flushed = now
                self._file.flush()
        except OSError as error:
            self._is_broken = True
            _LOG.error("the trace ends here, since it cannot be written: %s", error.strerror)
            with contextlib.suppress(OSError):
                self.close()

    def _write(self, line: msgspec.Struct) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")


class TracedSteps:
    """Records the steps that other `Steps` take. `clock`: seconds."""

    def __init__(
        self,
        steps: Steps,
        scheduler: Scheduler,
        memory: KVMemory,
        file: TraceFile,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._steps = steps
        self._scheduler = scheduler
        self._memory = memory
        self._file = file
        self._clock = clock
        self._start = clock()

    def take(self) -> tuple[StepPlan, StepResult]:
        began = self._clock()
        plan, result = self._steps.take()
        now = self._clock()
        record = StepRecord(
            step=plan.step,
            at_ms=round(1000 * (now - self._start), 3),
            ms=round(1000 * (now - began), 3),
            ran={chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks},
            used=self._memory.num_used,
            waiting=self._scheduler.num_waiting,
            preempted=[*plan.preempted],
            swapped_out=len(plan.copies_out),
            swapped_in=len(plan.copies_in),
            drafted=plan.num_draft_tokens,
            accepted=sum(max(0, len(run) - 1) for run in result.sampled.values()),
        )
        self._file.add(record, now)
        return plan, result


class Trace(msgspec.Struct, frozen=True):
    """A trace that was read."""

    header: TraceHeader
    steps: Sequence[StepRecord]

    def between(self, first: int, last: int | None = None) -> Trace:
        """Only steps number `first` to `last` (None: to the end). Raises TraceError where there are none."""
        steps = [
            record for record in self.steps if first <= record.step and (not last or record.step <= last)
        ]
        if not steps:
            raise TraceError(f"The trace has {len(self.steps)} steps, and none of those asked for.")
        return Trace(self.header, steps)


def read_trace(path: Path) -> Trace:
    """Reads a trace; a last line that is not whole, as of an engine that still runs, is left out. Raises
    TraceError."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise TraceError(f"The trace {path} cannot be read ({error.strerror}).") from error
    try:
        header = msgspec.json.decode(lines[0], type=TraceHeader)
        steps = _decode(lines[1:-1])
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path} is no trace of an engine ({error}); record one by --trace-path.") from error
    return Trace(header, steps)


def _decode(lines: Iterable[bytes]) -> list[StepRecord]:
    decoder = msgspec.json.Decoder(StepRecord)
    return [decoder.decode(line) for line in lines]
