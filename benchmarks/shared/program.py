"""The main program of a benchmark: its common options, and the run through its measurements."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from rich.console import Console

from benchmarks.shared.machine import describe
from benchmarks.shared.report import CannotRun, Row, Verdict, as_json, missing, show

S = TypeVar("S")

Measurement: TypeAlias = Callable[[S], Iterator[Row]]
"""Rows of one measurement, as they come, under settings of the benchmark's own kind."""


def add_options(parser: argparse.ArgumentParser, measurements: Iterable[str]) -> None:
    cache = Path.home() / ".cache" / "headrace" / "benchmarks"
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--only", action="append", choices=list(measurements), help="repeat it for several")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    parser.add_argument("--cache", type=Path, default=cache, help="for what is built once, as environments")
    parser.add_argument("--keep", action="store_true", help="keep data and logs of the run")


def run_all(
    measurements: Mapping[str, Measurement[S]],
    options: argparse.Namespace,
    settings_for: Callable[[Path], S],
    facts: Mapping[str, str],
) -> int:
    """Runs those that `options` ask for, or all, and shows their rows; 0: all that was measured meets its
    target. `settings_for` is given the folder for data and logs; `facts` are told beside the machine's."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that children are ended, too
    console, header = Console(width=None if sys.stdout.isatty() else 200), {**describe(), **facts}
    rows: list[Row] = []
    with _workspace(console, keep=options.keep) as work:
        settings = settings_for(work)
        for name in options.only or measurements:
            began = time.monotonic()
            console.print(f"measuring {name} …", highlight=False)
            for row in _guarded(name, measurements[name], settings):
                rows.append(row)
                told = f"  {row.what}: {row.value} {row.unit} {row.note}"
                console.print(told, highlight=False, markup=False)
            console.print(f"  took {time.monotonic() - began:.0f} s", highlight=False)
        show(rows, header, console)
        if options.json is not None:
            options.json.write_text(as_json(rows, header) + "\n")
    return int(any(row.verdict is Verdict.MISSED for row in rows))


@contextlib.contextmanager
def _workspace(console: Console, *, keep: bool) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    try:
        yield work
    finally:
        if keep:
            console.print(f"logs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)


def _guarded(name: str, measurement: Measurement[S], settings: S) -> Iterator[Row]:
    """A measurement that breaks off is a row that says so; the others go on."""
    try:
        yield from measurement(settings)
    except (CannotRun, AssertionError, OSError, RuntimeError, ValueError) as error:
        yield missing(name, "the rest of it", f"broke off: {type(error).__name__}: {error}")
