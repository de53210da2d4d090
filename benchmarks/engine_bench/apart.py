"""A measurement in a process of its own: its threads, pins and memory are gone with it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from benchmarks.engine_bench.foreign import Others
from benchmarks.shared.processes import family
from benchmarks.shared.report import CannotRun

P = ParamSpec("P")
R = TypeVar("R")


def apart(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> tuple[R, float]:
    """What a function of a module returns in a fresh process, and cores that others used meanwhile. Raises
    CannotRun where that process dies."""
    others = Others(lambda: family(os.getpid()))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(function, *args, **kwargs).result(), others.cores()
        except BrokenProcessPool as error:
            raise CannotRun(f"the process of {function.__module__} died") from error
