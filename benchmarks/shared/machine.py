"""The machine in a few words, for the head of the report."""

from __future__ import annotations

import os
import platform


def describe() -> dict[str, str]:
    """Processor, cores, memory, load, and the Python that runs us."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "load at the start": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or "unknown"
