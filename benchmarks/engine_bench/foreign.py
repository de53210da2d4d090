"""How much of the machine others used meanwhile: a figure from a disturbed machine is not worth much."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.shared.processes import cpu_seconds

MOST: Final = 0.15
"""Cores. A run with more of others is marked."""


@dataclass(slots=True)
class Others:
    """Cores that processes beside ours used, the time that a hypervisor took away among them, from when it
    was made until `cores` is asked. `ours` names our processes, then and now."""

    ours: Callable[[], Iterable[int]]
    _busy: float = 0.0
    _own: float = 0.0
    _began: float = 0.0

    def __post_init__(self) -> None:
        self._busy, self._own, self._began = busy_seconds(), cpu_seconds(self.ours()), time.perf_counter()

    def cores(self) -> float:
        seconds = time.perf_counter() - self._began
        others = (busy_seconds() - self._busy) - (cpu_seconds(self.ours()) - self._own)
        return max(0.0, others / seconds)


def busy_seconds(stat: Path = Path("/proc/stat")) -> float:
    """CPU time of all processes of the machine so far."""
    with stat.open() as lines:
        user, nice, system, _idle, _wait, *rest = map(int, lines.readline().split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
