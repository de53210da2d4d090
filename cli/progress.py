"""How a run is shown: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from headrace.producer.file_run.options import Progress, Summary

LINE_EVERY_S = 5.0


class Pace:
    """Speeds of this start of a run; what earlier starts did is left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = 0.0
        self._first: Progress | None = None

    def tokens_per_s(self, progress: Progress) -> float:
        first, seconds = self._since(progress)
        return (progress.completion_tokens - first.completion_tokens) / seconds

    def seconds_left(self, progress: Progress) -> float | None:
        """None where nothing is known yet."""
        first, seconds = self._since(progress)
        finished = progress.done + progress.failed - first.done - first.failed
        if finished <= 0:
            return None
        return (progress.total - progress.done - progress.failed) * seconds / finished

    def _since(self, progress: Progress) -> tuple[Progress, float]:
        if self._first is None:
            self._first, self._began = progress, self._clock()
        return self._first, max(self._clock() - self._began, 1e-3)


class RunDisplay:
    """Shows a run on stderr while it is open."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._pace = Pace()
        self._line_due = 0.0
        self._task: TaskID | None = None
        self._bar = Bar(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def note(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def update(self, progress: Progress) -> None:
        figures = self._figures(progress)
        if not self._console.is_terminal:
            self._line(progress, figures)
        elif self._task is None:
            self._task = self._bar.add_task("", total=progress.total, figures=figures)
        else:
            completed = progress.done + progress.failed
            self._bar.update(self._task, total=progress.total, completed=completed, figures=figures)

    def _line(self, progress: Progress, figures: str) -> None:
        now = time.monotonic()
        if now >= self._line_due:
            self._line_due = now + LINE_EVERY_S
            self.note(f"{progress.done + progress.failed}/{progress.total}  {figures}")

    def _figures(self, progress: Progress) -> str:
        left = self._pace.seconds_left(progress)
        parts = [f"{progress.failed} failed", f"{self._pace.tokens_per_s(progress):,.0f} tokens/s"]
        return "  ".join([*parts, f"{duration(left)} left"] if left is not None else parts)


def summary_line(summary: Summary) -> str:
    """The figures of a run that has ended; speeds are those of its last start."""
    answered = summary.done + summary.failed - summary.resumed
    seconds = max(summary.elapsed_s, 1e-3)
    parts = [
        f"{summary.done} answered",
        f"{summary.failed} failed",
        f"{summary.prompt_tokens:,} tokens in",
        f"{summary.completion_tokens:,} tokens out",
        f"{answered / seconds:.1f} requests/s",
        f"{duration(seconds)}",
    ]
    if summary.resumed:
        parts.insert(0, f"{summary.resumed} found from before")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """As `12.3 s`, `4:05` or `2:03:09`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
