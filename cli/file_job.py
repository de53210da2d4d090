"""One file of prompts answered, with all that it needs: what `headrace run` and `headrace demo` share.

Beside OUT stands a state folder with the queue of an embedded broker, so that a run that was killed finds
it again. It is removed once every line has its answer, and where the run never began.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Any, TypeVar

from headrace.broker.blobs import THRESHOLD, BlobStore
from headrace.broker.message import Lane
from headrace.cli.progress import RunDisplay
from headrace.cli.running import connected, stop_signals
from headrace.cli.stack import Stack, StackOptions
from headrace.gpu_engine.config import EngineConfig
from headrace.producer.file_run.mark import read_mark
from headrace.producer.file_run.options import FileRunOptions, Summary
from headrace.producer.file_run.run import FileRun

T = TypeVar("T")

# One consumer, and nobody to take over from it but its successor: a short lease costs nothing.
LEASE_S = 3.0
# Nobody watches the requests of a file, and their answers are in OUT: a million logs would fill the memory.
LOG_RETENTION_S = 300.0
GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class FileJob:
    """`broker` None: an embedded one with a consumer of our own, else whoever serves that queue. `blobs`: URL
    of the store for bodies above `blob_threshold` bytes, which those consumers must be given, too."""

    input: Path
    output: Path
    engine: EngineConfig
    broker: str | None
    prefix: str
    lane: Lane = Lane.BATCH
    served_model_names: tuple[str, ...] = ()
    blobs: str | None = None
    blob_threshold: int = THRESHOLD

    @property
    def state_dir(self) -> Path:
        return self.output.with_name(self.output.name + ".headrace")

    @property
    def run_options(self) -> FileRunOptions:
        store = None if self.blobs is None else BlobStore(self.blobs, threshold=self.blob_threshold)
        return FileRunOptions(
            input=self.input,
            output=self.output,
            model=self._model,
            prefix=self.prefix,
            lane=self.lane,
            blobs=store,
        )

    @property
    def _model(self) -> str:
        """What the answers depend on besides the lines."""
        if self.broker is not None:
            return ""
        engine = self.engine
        return f"{engine.engine} {engine.model} {engine.load_format} {engine.dtype}"


async def answer_file(job: FileJob, run: FileRun, display: RunDisplay) -> Summary | None:
    """Answers all lines that OUT does not hold yet; None when a signal stopped it.

    Raises Mistake, FileRunError, BrokerError or ChildFailed with a sentence where it cannot go on; what
    OUT holds is safe then, and the same command goes on from there.
    """
    if run.complete:  # no engine need be started to say so
        _remove(job.state_dir)
        return run.finish()
    stops = stop_signals()
    if job.broker is not None:
        return await _until_stopped(_answer(job, run, job.broker, display), stops)
    with _state(job) as say:
        stack = Stack(_stack_options(job), say)
        return await _until_stopped(_answer_on_stack(job, run, stack, display), stops)


def _stack_options(job: FileJob) -> StackOptions:
    return StackOptions(
        data_dir=job.state_dir,
        engine=job.engine,
        prefix=job.prefix,
        lease_s=LEASE_S,
        log_retention_s=LOG_RETENTION_S,
        served_model_names=job.served_model_names,
        grace_s=GRACE_S,
        blobs=job.blobs,
    )


async def _answer_on_stack(job: FileJob, run: FileRun, stack: Stack, display: RunDisplay) -> Summary:
    """Publishes only once the engine is up: a model that does not load leaves nothing behind in OUT."""
    async with _running(stack) as running:
        display.note("starting the engine")
        await _first_of(stack.until_healthy(), running)
        return await _first_of(_answer(job, run, stack.broker_url, display), running)


async def _answer(job: FileJob, run: FileRun, url: str, display: RunDisplay) -> Summary:
    async with connected(url, job.prefix) as broker:
        return await run.answer(broker, display.update)


@asynccontextmanager
async def _running(stack: Stack) -> AsyncIterator[asyncio.Future[None]]:
    try:
        await stack.start()
        yield asyncio.ensure_future(stack.run())
    finally:
        await stack.drain()


async def _first_of(work: Coroutine[Any, Any, T], running: asyncio.Future[None]) -> T:
    """The work's result; raises what ended the stack where that came first."""
    task = asyncio.ensure_future(work)
    try:
        either: set[asyncio.Future[Any]] = {task, running}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        return await task
    finally:
        await _cancelled(task)


async def _until_stopped(work: Coroutine[Any, Any, T], stops: asyncio.Queue[Any]) -> T | None:
    """The work's result; None where a signal came first, after the work has tidied up."""
    task = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stops.get())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        stopping.cancel()
        await _cancelled(task)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextmanager
def _state(job: FileJob) -> Iterator[Callable[[str, str], None]]:
    """Makes the state folder, which stays while a run is under way, and yields what writes to its log.

    No two runs share it: each holds its OUT.
    """
    if read_mark(job.output) is None:
        _remove(job.state_dir)  # of a run that is over: an old queue would only cost time
    try:
        job.state_dir.mkdir(exist_ok=True)
        # Unbuffered, so that no write is left for later that fails then.
        with (job.state_dir / "log").open("ab", buffering=0) as log:
            yield lambda name, line: _write_log(log, f"{name}: {line}\n")
    finally:
        if read_mark(job.output) is None:
            _remove(job.state_dir)


def _write_log(log: RawIOBase, line: str) -> None:
    with suppress(OSError):  # on a full disk the run itself says so
        log.write(line.encode(errors="replace"))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
