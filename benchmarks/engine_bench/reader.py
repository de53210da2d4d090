"""How fast the memory is read: the ceiling of a single stream, which reads all weights for each token.

python -m benchmarks.engine_bench.reader THREADS MIB      obeys lines: `read` answers with bytes a second
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

import torch

_TRIES: Final = 12
_READS: Final[tuple[Callable[[torch.Tensor], object], ...]] = (torch.sum, torch.max)


class Reader:
    """Reads `num_bytes` with `threads` threads, each on a core of its own and its own share of the memory."""

    def __init__(self, threads: int, num_bytes: int) -> None:
        torch.set_num_threads(1)  # of each of ours
        cores, places = sorted(os.sched_getaffinity(0)), count()

        def pin() -> None:
            os.sched_setaffinity(0, {cores[next(places) % len(cores)]})

        self._threads = ThreadPoolExecutor(threads, initializer=pin)
        share = num_bytes // threads // 4
        self._shares = list(self._threads.map(torch.ones, [share] * threads))

    @property
    def num_bytes(self) -> int:
        return sum(share.nbytes for share in self._shares)

    def read(self) -> float:
        """Bytes a second, the best of some tries of several kinds: what nobody can exceed."""
        return self.num_bytes / min(self._time(kind) for kind in _READS for _ in range(_TRIES))

    def _time(self, kind: Callable[[torch.Tensor], object]) -> float:
        began = time.perf_counter()
        list(self._threads.map(kind, self._shares))
        return time.perf_counter() - began


def main(arguments: Sequence[str]) -> None:
    reader = Reader(int(arguments[0]), int(arguments[1]) << 20)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        print(json.dumps({"bytes_per_s": reader.read()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
