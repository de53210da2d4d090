"""How long ago, or how long: as people write it, and as it is shown to them."""

from __future__ import annotations

import re

from headrace.broker.bounds import LONGEST_KEPT_S
from headrace.cli.errors import Mistake

_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_LONGEST_MS = LONGEST_KEPT_S * 1000


def parse_age(text: str) -> int:
    """Milliseconds of `90s`, `30m`, `12h` or `7d`; raises Mistake for anything else."""
    parts = _AGE.fullmatch(text)
    if parts is None:
        raise Mistake(f"{text[:40]!r} is no age; write 90s, 30m, 12h or 7d")
    ms = float(parts[1]) * _UNIT_MS[parts[2]]
    if ms > _LONGEST_MS:
        raise Mistake(f"{text[:40]!r} is too long ago; an age is at most {_LONGEST_MS // _UNIT_MS['d']}d")
    return round(ms)


def age(ms: int) -> str:
    """A duration in the two largest units that matter."""
    seconds = ms // 1000
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"
