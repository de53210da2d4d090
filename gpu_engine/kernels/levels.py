"""The kinds of x86 processor that the C++ kernels are built for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Level:
    """`flags` are the compiler's; `needs` what /proc/cpuinfo must list for the result to run. `bits`: of its
    vectors."""

    name: str
    bits: int
    flags: tuple[str, ...]
    needs: frozenset[str]


_V3: Final = frozenset({"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"})
_V4: Final = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}

LEVELS: Final = (
    Level("avx512vnni", 512, ("-march=x86-64-v4", "-mavx512vnni"), _V4 | {"avx512_vnni"}),
    Level("avx512", 512, ("-march=x86-64-v4",), _V4),
    Level("avxvnni", 256, ("-march=x86-64-v3", "-mavxvnni"), _V3 | {"avx_vnni"}),
    Level("avx2", 256, ("-march=x86-64-v3",), _V3),
)
"""Better ones first among those of as many bits."""


def candidates(cpu_flags: frozenset[str]) -> list[Level]:
    """The best level of each width that such a processor runs. Which of them is faster its flags do not say:
    some compute a wide vector in two halves, some lower their clock for it."""
    best: dict[int, Level] = {}
    for level in LEVELS:
        if level.needs <= cpu_flags:
            best.setdefault(level.bits, level)
    return list(best.values())


def read_cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the processor can do, as Linux says it; empty elsewhere."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
