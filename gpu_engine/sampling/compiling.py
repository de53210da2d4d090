"""Work in threads of its own, so that the engine's steps go on meanwhile: grammars are compiled there."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")

MOST_THREADS: Final = 4


class Job(Generic[Result]):
    """One piece of work. `started_at`: by the clock of its `Jobs`; `result` or `error`: it has ended."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self.work = work
        self.started_at: float | None = None
        self.result: Result | None = None
        self.error: BaseException | None = None
        self.is_given_up = False

    @property
    def ended(self) -> bool:
        return self.result is not None or self.error is not None


class Jobs(Generic[Result]):
    """Does one job after the other in a thread, which lives while there are some and keeps no process alive.
    `clock`: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[Job[Result]] = deque()
        self._threads = 0
        self._stuck = 0
        self._news = threading.Event()

    def submit(self, work: Callable[[], Result]) -> Job[Result]:
        """`work` does not return None."""
        job = Job(work)
        with self._lock:
            self._waiting.append(job)
            self._start()
        return job

    def give_up(self, job: Job[Result]) -> None:
        """Nobody waits for `job`, which runs and cannot be stopped: those behind it get another thread, if
        not too many are lost already."""
        with self._lock:
            if not (job.ended or job.is_given_up):
                job.is_given_up = True
                self._stuck += 1
                self._start()

    def wait(self, patience_s: float) -> None:
        """Until a job ends, or has ended since the last call, but no longer than `patience_s`."""
        self._news.wait(patience_s)
        self._news.clear()

    def _start(self) -> None:
        if self._waiting and self._threads == self._stuck and self._threads < MOST_THREADS:
            self._threads += 1
            threading.Thread(target=self._run, name="headrace-jobs", daemon=True).start()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.started_at = self._clock()
            result, error = None, None
            try:
                result = job.work()
            except BaseException as raised:  # native code panics with what is no Exception
                error = raised
            with self._lock:
                job.result, job.error = result, error
                self._stuck -= job.is_given_up
            self._news.set()

    def _next(self) -> Job[Result] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None
