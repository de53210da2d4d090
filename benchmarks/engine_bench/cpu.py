"""What the processor can do, as far as targets and the peers' settings depend on it."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.gpu_engine.kernels.levels import read_cpu_flags


@dataclass(frozen=True, slots=True)
class Cpu:
    """`flags` as Linux lists them."""

    flags: frozenset[str]

    @property
    def has_bf16(self) -> bool:
        """Products of bfloat16; without them bfloat16 is slower than float32 for those who compute in it."""
        return bool(self.flags & {"avx512_bf16", "amx_bf16"})

    @property
    def has_fp16(self) -> bool:
        """Arithmetic in float16, at twice the speed of float32."""
        return "avx512_fp16" in self.flags

    @property
    def level(self) -> str:
        """For the head of the report."""
        names = {
            "avx512_fp16": "AVX512_FP16",
            "avx512_bf16": "AVX512_BF16",
            "avx512_vnni": "AVX512_VNNI",
            "avx512f": "AVX-512",
            "avx2": "AVX2",
        }
        return next((name for flag, name in names.items() if flag in self.flags), "no AVX2")


def this_cpu() -> Cpu:
    return Cpu(read_cpu_flags())
