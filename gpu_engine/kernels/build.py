"""Builds the C++ kernels with g++ at first use and keeps the result, keyed by source, flags and processor."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "cpu"
# The sources use OpenMP, but no OpenMP library is linked: its symbols resolve to the one that torch has
# loaded, so that both share one team of threads.
COMPILE = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp")
LINK = ("-shared", "-fPIC")


def load_cpu_kernels(cache_dir: Path | None = None) -> ctypes.CDLL | None:
    """The library of `cpu/*.cpp`, or None where there is no compiler or no place for what it makes: pure
    torch serves then. torch must have been imported before.

    The first call compiles for about 3 seconds; `cache_dir` (default: `~/.cache/headrace/kernels`) keeps the
    result. Processes that build at the same time do not disturb one another.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    try:
        return ctypes.CDLL(str(_build(compiler, cache_dir or Path.home() / ".cache/headrace/kernels")))
    except (OSError, RuntimeError, subprocess.CalledProcessError):  # RuntimeError: a user without a home
        return None


def _build(compiler: str, cache_dir: Path) -> Path:
    library = cache_dir / f"cpu-{_key(compiler)}.so"
    if library.exists():
        return library
    cache_dir.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=cache_dir, suffix=".so")
    os.close(handle)
    try:
        _compile(compiler, Path(unfinished))
        os.replace(unfinished, library)
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return library


def _compile(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for source in sorted(SOURCES.glob("*.cpp")):
            objects.append(str(Path(folder) / f"{source.stem}.o"))
            _run(compiler, *COMPILE, "-c", str(source), "-o", objects[-1])
        _run(compiler, *LINK, *objects, "-o", str(library))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _key(compiler: str) -> str:
    """`-march=native` makes the result depend on the processor, so its flags belong to the key."""
    digest = hashlib.sha256(repr((compiler, COMPILE, LINK, platform.machine(), _cpu_flags())).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
