"""What engines around an engine have in common."""

from __future__ import annotations

from typing import Generic, TypeVar

from headrace.gpu_engine.api import CountingEngine, EngineInfo, EngineStats

Inner = TypeVar("Inner", bound=CountingEngine)


class EngineAround(Generic[Inner]):
    """Says of itself what the inner engine says. How requests come in and go out is for each kind to say."""

    def __init__(self, engine: Inner) -> None:
        self._engine = engine

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def num_running(self) -> int:
        return self._engine.num_running

    @property
    def num_waiting(self) -> int:
        return self._engine.num_waiting

    @property
    def stats(self) -> EngineStats:
        return self._engine.stats


def member_id(request_id: str, index: int) -> str:
    """The inner engine's id for number `index` of the several that a request is made of; no request's own id
    is like it."""
    return f"{request_id}\0{index}"
