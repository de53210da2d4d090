"""The C++ kernel gives what the torch reference gives, whatever the shape of the step."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.gpu_engine.attention import cpu
from headrace.gpu_engine.attention.contract import KVSpec, RaggedBatch
from headrace.gpu_engine.attention.reference import ReferenceAttention
from headrace.gpu_engine.native.attention import NativeAttention, NativeMemory
from headrace.gpu_engine.native.attention import suits as native_suits
from tests.support.native import compiled, pool_of

BLOCKS = 128


def spec_of(group: int = 3, kv_heads: int = 2, dim: int = 32, block: int = 16) -> KVSpec:
    return KVSpec(2, group * kv_heads, kv_heads, dim, 1 / math.sqrt(dim), block, torch.float32)


def step_of(lengths: list[tuple[int, int]], block: int, generator: torch.Generator) -> RaggedBatch:
    """(tokens before this step, tokens of this step) for each sequence, in blocks drawn at random."""
    ids = iter((torch.randperm(BLOCKS - 1, generator=generator) + 1).tolist())
    contexts = [before + new for before, new in lengths]
    width = max(-(-context // block) for context in contexts)
    tables = [[next(ids) for _ in range(-(-context // block))] for context in contexts]
    positions = [range(before, before + new) for before, new in lengths]
    slots = [t[p // block] * block + p % block for t, ps in zip(tables, positions, strict=True) for p in ps]
    starts = [0]
    for _, new in lengths:
        starts.append(starts[-1] + new)
    return RaggedBatch(
        query_start=torch.tensor(starts, dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32),
        slot_mapping=torch.tensor(slots),
        positions=torch.tensor([p for ps in positions for p in ps]),
        num_decodes=0,
        max_query_len=max(new for _, new in lengths),
        max_context_len=max(contexts),
    )


@cache
def memory_of_the_native_decoder() -> NativeMemory:
    return NativeMemory(pool_of(2))


def kernels_for(spec: KVSpec) -> list[cpu.CpuAttention | NativeAttention]:
    """Those of the torch decoder and of the native one, as far as they serve such a cache."""
    torch_ones = [cpu.CpuAttention(spec, BLOCKS)] if cpu.suits(spec) else []
    return [*torch_ones, *([memory_of_the_native_decoder()(spec, BLOCKS)] if native_suits(spec) else [])]


def both_outputs(
    spec: KVSpec, lengths: list[tuple[int, int]], seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step over caches that hold the same random past, and NaN wherever nothing was written: outputs of
    the kernels, and those of the reference as often."""
    generator = torch.Generator().manual_seed(seed)
    batch = step_of(lengths, spec.block_size, generator)
    kernels = kernels_for(spec)
    assert kernels
    for kernel in kernels:
        kernel.keys.fill_(torch.nan)
        kernel.values.fill_(torch.nan)
    past = step_of([(0, c) for c in batch.context_lens.tolist()], spec.block_size, generator)
    slots = [
        int(batch.block_tables[s, p // spec.block_size]) * spec.block_size + p % spec.block_size
        for s, c in enumerate(batch.context_lens.tolist())
        for p in range(c)
    ]
    past = RaggedBatch(
        past.query_start,
        past.context_lens,
        batch.block_tables,
        torch.tensor(slots),
        past.positions,
        0,
        past.max_query_len,
        past.max_context_len,
    )

    def draw(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(tokens, heads, spec.head_dim, generator=generator)

    total, new = len(slots), int(batch.query_start[-1])
    k0, v0 = draw(total, spec.num_kv_heads), draw(total, spec.num_kv_heads)
    q, k, v = draw(new, spec.num_heads), draw(new, spec.num_kv_heads), draw(new, spec.num_kv_heads)
    results = []
    for backend in (*kernels, ReferenceAttention(spec, BLOCKS)):
        backend.begin(past).attend(1, draw(total, spec.num_heads), k0, v0)
        results.append(backend.begin(batch).attend(1, q, k, v))
    ours = torch.stack(results[:-1])
    return ours, results[-1].expand_as(ours)


@compiled
@given(
    lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=5),
    group=st.integers(1, 5),
    block=st.sampled_from([8, 16, 32]),
    dim=st.sampled_from([8, 64, 72]),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_any_ragged_step_equals_the_reference(
    lengths: list[tuple[int, int]], group: int, block: int, dim: int, seed: int
) -> None:
    native, reference = both_outputs(spec_of(group=group, dim=dim, block=block), lengths, seed)
    torch.testing.assert_close(native, reference, rtol=1e-5, atol=2e-6)


@compiled
def test_contexts_around_the_edge_of_a_block_equal_the_reference() -> None:
    lengths = [(c - 1, 1) for k in (1, 2, 3) for c in (16 * k - 1, 16 * k, 16 * k + 1)]
    native, reference = both_outputs(spec_of(), lengths, seed=0)
    torch.testing.assert_close(native, reference, rtol=1e-5, atol=2e-6)


@compiled
def test_large_scores_neither_overflow_nor_vanish() -> None:
    spec = spec_of(dim=8)
    generator = torch.Generator().manual_seed(1)
    batch = step_of([(0, 20)], spec.block_size, generator)
    q, k, v = (torch.randn(20, heads, 8, generator=generator) * 60 for heads in (6, 2, 2))
    native = cpu.CpuAttention(spec, BLOCKS).begin(batch).attend(0, q, k, v)
    reference = ReferenceAttention(spec, BLOCKS).begin(batch).attend(0, q, k, v)
    torch.testing.assert_close(native, reference, rtol=1e-4, atol=1e-3)


@compiled
@pytest.mark.parametrize("changes", [{"windows": (None, 19)}, {"softcap": 5.0}])
def test_windows_and_soft_caps_of_the_native_decoder_equal_the_reference(changes: dict[str, Any]) -> None:
    spec = replace(spec_of(), **changes)
    native, reference = both_outputs(spec, [(40, 1), (0, 50), (17, 9)], seed=3)
    torch.testing.assert_close(native, reference, rtol=1e-5, atol=2e-6)


def test_shapes_that_do_not_suit_the_kernel_are_left_to_the_reference() -> None:
    assert not cpu.suits(spec_of(dim=12))
    assert not cpu.suits(spec_of(block=4))
    assert cpu.suits(spec_of())


def test_windows_and_soft_caps_are_left_to_the_reference() -> None:
    assert not cpu.suits(replace(spec_of(), windows=(None, 8)))
    assert not cpu.suits(replace(spec_of(), softcap=30.0))
    assert cpu.suits(replace(spec_of(), windows=(None, None)))
