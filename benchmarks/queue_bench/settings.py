"""What the measurements are told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

BrokerKind: TypeAlias = Literal["redis", "kafka"]
Fsync: TypeAlias = Literal["everysec", "always"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """`quick`: a smoke run, whose figures mean little. `fsync`: how Valkey writes its file, the same for all
    who use it. `cache`: where the peers' environments stay from run to run; `work`: a folder for data and
    logs of this run. `model`: for the measurements with a real engine."""

    quick: bool
    brokers: tuple[BrokerKind, ...]
    fsync: Fsync
    cache: Path
    work: Path
    model: str
    peers: tuple[str, ...]

    def folder(self, name: str) -> Path:
        """A new folder of this name under `work`."""
        path = self.work / name
        for number in range(2, 1000):
            if not path.exists():
                break
            path = self.work / f"{name}-{number}"
        path.mkdir(parents=True)
        return path
