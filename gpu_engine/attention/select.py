"""The attention backends by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.gpu_engine.attention.contract import AttentionBackend, BackendFactory, KVSpec
from headrace.gpu_engine.attention.cpu import CpuAttention, available, suits
from headrace.gpu_engine.attention.reference import ReferenceAttention


@dataclass(frozen=True, slots=True)
class Chosen:
    """A factory that picks its backend when it learns what the model needs."""

    pick: Callable[[KVSpec], BackendFactory]

    def block_bytes(self, spec: KVSpec) -> int:
        return self.pick(spec).block_bytes(spec)

    def __call__(self, spec: KVSpec, num_blocks: int) -> AttentionBackend:
        return self.pick(spec)(spec, num_blocks)


def fastest(spec: KVSpec) -> BackendFactory:
    """The native kernel where it is built and suits the cache, else torch."""
    return CpuAttention if suits(spec) and available() else ReferenceAttention


def select_backend(name: str) -> BackendFactory:
    """The backend called `name`: `reference`, or `cpu` and `auto` for the fastest that runs here."""
    backends: dict[str, BackendFactory] = {
        "auto": Chosen(fastest),
        "cpu": Chosen(fastest),
        "reference": ReferenceAttention,
    }
    return backends[name]
