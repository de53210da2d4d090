"""What the measurements are told."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_bench.cpu import Cpu
from benchmarks.engine_bench.models import Model
from benchmarks.engine_bench.workload import Workload, draw_workload

STEP_BUDGET = 512
_SHORTER_WHEN_QUICK = 8


@dataclass(frozen=True, slots=True)
class EngineBenchSettings:
    """`quick`: a smoke run, whose figures mean little. `threads`, `slots`: everybody's. `cache`: where
    environments, models and builds stay from run to run; `work`: a folder for the logs of this run. `peers`:
    by name, those to compare with."""

    quick: bool
    models: tuple[Model, ...]
    peers: tuple[str, ...]
    rounds: int
    threads: int
    slots: int
    cache: Path
    work: Path
    cpu: Cpu

    def folder(self, name: str) -> Path:
        """A new folder under `work`."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    def workload(self, model: Model, *, shared_prefix: int = 0) -> Workload:
        return draw_workload(
            count=6 if self.quick else 64,
            bos=model.bos,
            shared_prefix=shared_prefix,
            shorter=_SHORTER_WHEN_QUICK if self.quick else 1,
        )
