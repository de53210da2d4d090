"""Random numbers that depend on (seed, position) alone: no generator is carried along, so a request draws
the same ones alone, in a batch, after a preemption, and on another machine.

SplitMix64 (Steele, Lea & Flood 2014), used as a counter-based generator: the seed is mixed once to choose
the stream, the position selects the output within it.
"""

from __future__ import annotations

from typing import Final

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits. Seeds count modulo 2^64."""
    return (_mix(_mix(seed) + position * GOLDEN) >> 11) / (1 << 53)


def derive_seed(seed: int, index: int) -> int:
    """The seed of answer number `index` to one request; the first has the request's own."""
    return _mix(_mix(seed) ^ index) if index else seed


def _mix(x: int) -> int:
    """The finaliser of SplitMix64 after one step of its counter."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)
