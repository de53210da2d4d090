"""How much memory this process may use at all. On Linux more is often given than there is, and the process
killed when it writes to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from headrace.gpu_engine.models.errors import ModelError

# Limits of a control group, as containers have: version 2, then 1.
CGROUP_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def machine_memory() -> int:
    """Bytes that the machine has, or the limit of this process's container where that is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_read_limits()])


def require_memory(num_bytes: int, purpose: str, advice: str) -> None:
    """Raises ModelError where the machine could never give that much: "`purpose` … ; `advice`"."""
    there = machine_memory()
    if num_bytes > there:
        raise ModelError(f"{purpose} {mib(num_bytes)}, and this machine has {mib(there)}; {advice}.")


def mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)} MiB"


def _read_limits() -> list[int]:
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if path.is_file()]
    return [int(text) for text in texts if text.isdecimal()]
