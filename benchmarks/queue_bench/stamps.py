"""A time as a token id, so that it takes a token's way: microseconds of the monotonic clock, which on one
machine is the same for all processes.

Ids of a log are unsigned 32-bit numbers, so stamps wrap after 35 minutes; they are read long before. They
stand behind the ids of the simulated tokenizer's bytes and special tokens, for which they decode to nothing.
"""

from __future__ import annotations

import time
from typing import Final

_FIRST: Final = 1 << 16
_ROUND: Final = 1 << 31


def stamp(now_ns: int | None = None) -> int:
    """The token id that stands for now."""
    now = time.monotonic_ns() if now_ns is None else now_ns
    return _FIRST + now // 1000 % _ROUND


def made_at(token_id: int, now_ns: int) -> float:
    """Seconds of the monotonic clock at which a stamp was made, read no later than a round afterwards."""
    age_us = (now_ns // 1000 - (token_id - _FIRST)) % _ROUND
    return now_ns / 1e9 - age_us / 1e6
