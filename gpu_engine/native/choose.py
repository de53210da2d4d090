"""Which build of the kernels is the fastest on this processor: measured once, then remembered."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from headrace.gpu_engine.kernels.build import default_cache, library_file
from headrace.gpu_engine.kernels.levels import Level, candidates, read_cpu_flags
from headrace.gpu_engine.native.declarations import Format, declare
from headrace.gpu_engine.native.linear import PackedLinear, multiply, pack_linear
from headrace.gpu_engine.native.pool import Pool

_ROWS: Final = (1, 16)  # a single stream, and a batch
_TRIES: Final = 15


def choose_library(cache_dir: Path | None = None) -> ctypes.CDLL | None:
    """The fastest of those that can be had, or None: pure torch serves then."""
    files = {}
    for level in candidates(read_cpu_flags()):
        if (file := library_file(level, cache_dir)) is not None:
            files[level] = file
    if not files:
        return None
    level = _remembered(files, cache_dir) if len(files) > 1 else next(iter(files))
    return _load(files[level])


def _load(file: Path) -> ctypes.CDLL | None:
    try:
        return declare(ctypes.CDLL(str(file)))
    except OSError:
        return None


def _remembered(files: dict[Level, Path], cache_dir: Path | None) -> Level:
    """By the files' names, which change with sources and compiler, and the processor's."""
    key = "-".join(sorted(file.stem for file in files.values()))
    try:
        note = (cache_dir or default_cache()) / f"fastest-{_cpu_name()}-{key}"
        known = note.read_text() if note.exists() else ""
        chosen = next((level for level in files if level.name == known), None)
        if chosen is None:
            chosen = fastest(list(files.items()))
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(chosen.name)
        return chosen
    except (OSError, RuntimeError):  # no place to remember it
        return fastest(list(files.items()))


def fastest(files: Sequence[tuple[Level, Path]]) -> Level:
    """The level whose products take the least time, single rows and batches counted alike."""
    times = {level: _measure(kernels) for level, file in files if (kernels := _load(file)) is not None}
    best = [min(column) for column in zip(*times.values(), strict=True)]
    return min(times, key=lambda level: sum(t / b for t, b in zip(times[level], best, strict=True)))


def _measure(kernels: ctypes.CDLL) -> list[float]:
    """Seconds of a product, the best of some tries, for each number of rows."""
    pool = Pool(1, kernels=kernels)
    layer = pack_linear(pool, torch.ones(1024, 768), None, Format.INT16)
    return [min(_time(pool, layer, rows) for _ in range(_TRIES)) for rows in _ROWS]


def _time(pool: Pool, layer: PackedLinear, rows: int) -> float:
    x = torch.ones(rows, 768)
    began = time.perf_counter()
    multiply(pool, layer, x)
    return time.perf_counter() - began


def _cpu_name() -> str:
    """The processor's model, fit for the name of a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    name = "".join(line.partition(":")[2] for line in lines[:9] if line.startswith(("model", "cpu family")))
    return "".join(c if c.isalnum() else "-" for c in name.strip())
