"""llama.cpp: its sources come with the package llama-cpp-python, and are built for this processor."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path
from typing import Final, Literal

from benchmarks.engine_bench.models import TRANSFORMERS, Model, made_once, model_folder
from benchmarks.shared.environments import Command, environment, run_tool
from benchmarks.shared.report import CannotRun

NAME: Final = "llama-cpp-python"
VERSION: Final = "0.3.36"
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
)
_BUILD_LIMIT_S: Final = 7200


def server_program(cache: Path) -> Path:
    """`llama-server`; raises CannotRun where it cannot be built."""
    sources = _sources(cache)
    program = sources / "bld" / "bin" / "llama-server"
    if not program.exists():
        run_tool(["cmake", "-B", "bld", *_OPTIONS], cwd=sources)
        jobs = str(len(os.sched_getaffinity(0)))
        build: Command = ["cmake", "--build", "bld", "--target", "llama-server", "-j", jobs]
        run_tool(build, cwd=sources, limit_s=_BUILD_LIMIT_S)
    return program


def gguf_file(model: Model, form: Literal["bf16", "q8_0"], cache: Path) -> Path:
    """The model's weights as llama.cpp reads them; raises CannotRun."""

    def convert(file: Path) -> None:
        python = environment("transformers", TRANSFORMERS, cache)
        folder, script = model_folder(model, cache), _sources(cache) / "convert_hf_to_gguf.py"
        run_tool([python, script, folder, "--outtype", form, "--outfile", file])

    return made_once(cache / "models" / model.name / f"{form}.gguf", convert)


def _sources(cache: Path) -> Path:
    return made_once(cache / f"{NAME}-{VERSION}", _download) / "vendor" / "llama.cpp"


def _download(folder: Path) -> None:
    """By pip, since uv has no download; the package itself is not built."""
    folder.mkdir(parents=True)
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", NAME]
    run_tool([*argv, "--dest", folder, f"{NAME}=={VERSION}"])
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        raise CannotRun("pip brought no sources of llama-cpp-python")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    archives[0].unlink()
    for path in next(folder.glob("llama_cpp_python-*")).iterdir():
        path.rename(folder / path.name)
