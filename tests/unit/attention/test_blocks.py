"""Whole blocks copied by a step, in the memory of either backend."""

from __future__ import annotations

import math

import pytest
import torch

from headrace.gpu_engine.attention import cpu
from headrace.gpu_engine.attention.blocks import BlockStore
from headrace.gpu_engine.attention.contract import AttentionBackend, BackendFactory, KVSpec
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.scheduling.step import StepPlan

SPEC = KVSpec(2, 4, 2, 8, 1 / math.sqrt(8), 8, torch.float32)
BLOCKS = 6

backends = pytest.mark.parametrize(
    "factory",
    [
        ReferenceAttention,
        pytest.param(
            cpu.CpuAttention, marks=pytest.mark.skipif(not cpu.available(), reason="no kernel is built here")
        ),
    ],
)


def numbered(factory: BackendFactory) -> tuple[AttentionBackend, list[torch.Tensor]]:
    """A backend whose every number is another, and what its blocks held at first."""
    backend = factory(SPEC, BLOCKS)
    for view in backend.storage:
        view.copy_(torch.arange(view.numel(), dtype=torch.float32).view(view.shape))
    return backend, [view.clone() for view in backend.storage]


def holds(backend: AttentionBackend, before: list[torch.Tensor], block: int, content: int) -> bool:
    return all(
        bool((view[:, block] == old[:, content]).all())
        for view, old in zip(backend.storage, before, strict=True)
    )


@backends
@pytest.mark.parametrize("copies", [[(1, 2), (2, 3), (3, 1)], [(1, 2), (1, 3), (4, 5)]])
def test_all_sources_are_read_before_any_block_is_written(
    factory: BackendFactory, copies: list[tuple[int, int]]
) -> None:
    backend, before = numbered(factory)
    BlockStore(backend.storage).move(StepPlan(1, (), copies=copies))
    assert all(holds(backend, before, block, content) for content, block in [*copies, (0, 0)])


@backends
def test_what_goes_to_the_host_comes_back_into_any_block(factory: BackendFactory) -> None:
    backend, before = numbered(factory)
    store = BlockStore(backend.storage, num_host_slots=3)
    store.move(StepPlan(1, (), copies_out=[(1, 2), (4, 0)], copies=[(5, 1)]))
    for view in backend.storage:
        view[:, 2:].fill_(torch.nan)
    store.move(StepPlan(2, (), copies_in=[(2, 3), (0, 2)]))
    assert all(holds(backend, before, block, content) for content, block in [(1, 3), (4, 2), (5, 1)])


@backends
def test_a_store_with_a_host_knows_how_long_a_block_takes(factory: BackendFactory) -> None:
    backend, _ = numbered(factory)
    assert BlockStore(backend.storage).copy_s == 0
    assert 0 < BlockStore(backend.storage, num_host_slots=1).copy_s < 1
