"""What a contestant does in its turn, and the figures that it brings."""

from __future__ import annotations

from typing import Final

from benchmarks.engine_bench.rounds import Act, Figures
from benchmarks.shared.figures import median
from benchmarks.shared.obedient import Obedient
from benchmarks.shared.processes import family, peak_rss_mib

BATCHED: Final = "batched"  # output tokens per second of the whole workload
SINGLE: Final = "single stream"  # tokens per second behind the first, of one request alone
TTFT: Final = "first token"  # milliseconds until the single prompt's first token
MEMORY: Final = "peak memory"  # MiB, each process at its own time
READ: Final = "read bandwidth"  # bytes per second

UNITS: Final = {BATCHED: "tokens/s", SINGLE: "tokens/s", TTFT: "ms", MEMORY: "MiB", READ: "GB/s"}
LESS_IS_BETTER: Final = frozenset({TTFT, MEMORY})

_FIRST_TOKENS: Final = 3  # the median of them counts


def all_laps(single_tokens: int) -> Act:
    def act(process: Obedient) -> Figures:
        batched = rate_of(process)
        first = median([seconds(process, "single 1") for _ in range(_FIRST_TOKENS)])
        rest = seconds(process, f"single {single_tokens}") - first
        return {
            BATCHED: batched,
            SINGLE: (single_tokens - 1) / max(rest, 1e-9),
            TTFT: 1000 * first,
            MEMORY: peak_rss_mib(family(process.pid)),
        }

    return act


def batch_only(process: Obedient) -> Figures:
    return {BATCHED: rate_of(process)}


def batch_and_single(single_tokens: int) -> Act:
    """The rate of the single request counts its first token too."""

    def act(process: Obedient) -> Figures:
        single = single_tokens / max(seconds(process, f"single {single_tokens}"), 1e-9)
        return {BATCHED: rate_of(process), SINGLE: single}

    return act


def reading(process: Obedient) -> Figures:
    return {READ: float(process.tell("read")["bytes_per_s"])}


def rate_of(process: Obedient) -> float:
    told = process.tell("batch")
    return float(told["tokens"] / told["seconds"])


def seconds(process: Obedient, line: str) -> float:
    return float(process.tell(line)["seconds"])
