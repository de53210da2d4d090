"""What is asked depends on what the processor can do."""

from __future__ import annotations

import pytest

from benchmarks.engine_bench.cpu import Cpu
from benchmarks.engine_bench.targets import targets_for

AVX2 = frozenset({"avx2", "fma"})
ZEN4 = AVX2 | {"avx512f", "avx512_vnni", "avx512_bf16"}
SAPPHIRE = ZEN4 | {"avx512_fp16"}


@pytest.mark.parametrize(
    ("flags", "batched", "first"), [(AVX2, 1.3, 1.3), (ZEN4, 1.3, 1.3), (SAPPHIRE, 2.0, 2.5)]
)
def test_more_is_asked_where_float16_can_be_multiplied(
    flags: frozenset[str], batched: float, first: float
) -> None:
    found = targets_for(Cpu(flags))
    assert (found.batched.bound, found.first_token.bound) == (batched, first)
    assert (found.single.bound, found.ceiling.bound, found.batched_int8.bound) == (1.2, 85, 1.5)


@pytest.mark.parametrize(
    ("flags", "level"),
    [(AVX2, "AVX2"), (ZEN4, "AVX512_BF16"), (SAPPHIRE, "AVX512_FP16"), (frozenset(), "no AVX2")],
)
def test_the_level_is_the_best_that_is_there(flags: frozenset[str], level: str) -> None:
    assert Cpu(flags).level == level


def test_bfloat16_is_for_those_who_can_multiply_it() -> None:
    assert Cpu(ZEN4).has_bf16
    assert not Cpu(AVX2).has_bf16
