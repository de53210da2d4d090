"""Whether an engine has the adapter that a request names. (No torch here: the simulated engine asks, too.)"""

from __future__ import annotations

from collections.abc import Collection

from headrace.gpu_engine.api import EngineError


def check_adapter(name: str | None, known: Collection[str]) -> EngineError | None:
    """Why a request cannot have the adapter `name`; None where it can, or asks for none."""
    if name is None or name in known:
        return None
    there = f"there are {', '.join(sorted(known))}" if known else "this engine has none"
    message = f"There is no LoRA adapter {name[:100]!r}: {there}."
    return EngineError(code="invalid_request", message=message, param="adapter")
