"""Whole KV blocks copied within a backend's memory, and to the host and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import torch

from headrace.gpu_engine.scheduling.step import StepPlan

_PROBES: Final = 8


class BlockStore:
    """The blocks of an attention backend, and `num_host_slots` slots of host memory for some of them.

    `views` are the backend's own tensors [layers, blocks, …], such as its keys and its values. Host memory
    is taken once, and pinned where the backend's is on a GPU, so that a copy to or from it never has to ask
    for any.
    """

    def __init__(self, views: Sequence[torch.Tensor], num_host_slots: int = 0) -> None:
        self._views = views
        self.num_host_slots = num_host_slots
        self._host = [_host_memory(view, num_host_slots) for view in views] if num_host_slots else []
        self.copy_s = self._measure() if num_host_slots else 0.0

    def move(self, plan: StepPlan) -> None:
        """Does the copies of a step, in the order that `memory.moves` asks for."""
        for block, slot in plan.copies_out:
            self._out(block, slot)
        self._copy(plan.copies)
        for slot, block in plan.copies_in:
            for view, host in zip(self._views, self._host, strict=True):
                view[:, block].copy_(host[slot], non_blocking=True)

    def _copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """All sources are read before any block is written. That takes memory only where one is both."""
        sources = {source for source, _ in pairs}
        if sources.isdisjoint(block for _, block in pairs):
            for source, block in pairs:
                for view in self._views:
                    view[:, block].copy_(view[:, source])
            return
        read, written = torch.tensor(pairs, device=self._views[0].device).unbind(dim=1)
        for view in self._views:
            view[:, written] = view[:, read]

    def _out(self, block: int, slot: int) -> None:
        for view, host in zip(self._views, self._host, strict=True):
            host[slot].copy_(view[:, block], non_blocking=True)

    def _measure(self) -> float:
        """Seconds that a block takes to the host: the best of a few."""
        times = []
        for _ in range(_PROBES):
            began = time.perf_counter()
            self._out(0, 0)
            if self._views[0].is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)


def _host_memory(view: torch.Tensor, num_slots: int) -> torch.Tensor:
    """[slots, layers, …]: a slot lies in one piece."""
    layers, _, *rest = view.shape
    return torch.empty((num_slots, layers, *rest), dtype=view.dtype, pin_memory=view.is_cuda)
