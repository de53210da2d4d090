"""The attention backends by name."""

from __future__ import annotations

from headrace.gpu_engine.attention.contract import BackendFactory
from headrace.gpu_engine.attention.reference import ReferenceAttention


def select_backend(name: str) -> BackendFactory:
    """The backend called `name`; `auto` is the fastest that runs here."""
    return {"auto": ReferenceAttention, "cpu": ReferenceAttention, "reference": ReferenceAttention}[name]
