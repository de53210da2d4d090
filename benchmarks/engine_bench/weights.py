"""How many bytes of weights a token needs."""

from __future__ import annotations

from headrace.gpu_engine.backend import load_backend
from headrace.gpu_engine.config import EngineConfig


def packed_bytes(model: str, weights: str) -> int:
    """Of all matrices as the native kernels keep them; raises ModelError where they cannot."""
    config = EngineConfig.model_validate(
        {"model": model, "weight_format": weights, "backend": "native", "threads": 1}
    )
    return load_backend(config)[0].num_bytes
