"""Builds the C++ kernels with g++ at first use and keeps the result, keyed by source, flags and compiler.
A wheel brings them built."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from headrace.gpu_engine.kernels.levels import LEVELS, Level

SOURCES: Final = Path(__file__).parent / "cpu"
PREBUILT: Final = Path(__file__).parent / "prebuilt"
# One source uses OpenMP, but no OpenMP library is linked: its symbols resolve to the one that torch has
# loaded, so that both share one team of threads.
COMPILE: Final = ("-O3", "-std=c++17", "-fPIC", "-fopenmp")
LINK: Final = ("-shared", "-fPIC", "-static-libstdc++", "-static-libgcc")


def library_file(level: Level, cache_dir: Path | None = None) -> Path | None:
    """The library of `cpu/*.cpp` for processors of this level, or None where it is not there and there is no
    compiler or no place for what it makes.

    The first call compiles for some seconds; `cache_dir` (default: `~/.cache/headrace/kernels`) keeps the
    result. Processes that build at the same time do not disturb one another.
    """
    prebuilt = PREBUILT / f"{_source_key()}-{level.name}.so"
    if prebuilt.exists():
        return prebuilt
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    try:
        return _build(compiler, level, cache_dir or default_cache())
    except (OSError, RuntimeError, subprocess.CalledProcessError):  # RuntimeError: a user without a home
        return None


def default_cache() -> Path:
    return Path.home() / ".cache/headrace/kernels"


def prebuild(level: Level, folder: Path = PREBUILT) -> Path:
    """Builds into the package, for a wheel. Raises CalledProcessError with what the compiler says."""
    folder.mkdir(exist_ok=True)
    library = folder / f"{_source_key()}-{level.name}.so"
    _compile("g++", level, library)
    return library


def _build(compiler: str, level: Level, cache_dir: Path) -> Path:
    library = cache_dir / f"{level.name}-{_key(compiler, level)}.so"
    if library.exists():
        return library
    cache_dir.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=cache_dir, suffix=".so")
    os.close(handle)
    try:
        _compile(compiler, level, Path(unfinished))
        os.replace(unfinished, library)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return library


def _compile(compiler: str, level: Level, library: Path) -> None:
    """All sources at the same time, then together."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as threads:

        def compile_one(source: Path) -> str:
            made = str(Path(folder) / f"{source.stem}.o")
            _run(compiler, *COMPILE, *level.flags, "-c", str(source), "-o", made)
            return made

        objects = list(threads.map(compile_one, sorted(SOURCES.glob("*.cpp"))))
        _run(compiler, *LINK, *objects, "-o", str(library))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _key(compiler: str, level: Level) -> str:
    what = repr((_source_key(), compiler, COMPILE, LINK, level.flags))
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def _source_key() -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":  # before a wheel is made
    for each in LEVELS:
        sys.stdout.write(f"{prebuild(each)}\n")
