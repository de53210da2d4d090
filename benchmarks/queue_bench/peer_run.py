"""Runs one peer: its worker, and the driver that publishes and reads results back."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.queue_bench.noop_run import Contestant
from benchmarks.queue_bench.peer_list import Peer
from benchmarks.shared.obedient import Obedient
from benchmarks.shared.processes import cpu_seconds, family, held, last_words, running

_SCRIPTS = Path(__file__).parent / "peers"


class PeerContestant(Contestant):
    """`worker` and `driver`: processes of the peer's script."""

    def __init__(self, worker: subprocess.Popen[str], driver: Obedient) -> None:
        self._worker, self._driver = worker, driver

    def publish(self, count: int) -> float:
        return self._tell(f"publish {count}")

    def collect(self) -> float:
        return self._tell("collect")

    def cpu(self) -> float:
        return cpu_seconds(family(self._worker.pid))

    def held(self) -> contextlib.AbstractContextManager[None]:
        return held(family(self._worker.pid))

    def _tell(self, line: str) -> float:
        return float(self._driver.tell(line)["seconds"])


@contextlib.contextmanager
def running_peer(peer: Peer, python: Path, url: str, work: Path) -> Iterator[PeerContestant]:
    """Worker and driver of a peer, against the server at `url`."""
    script = _SCRIPTS / f"with_{peer.name}.py"
    worker_log, driver_log = work / "worker.log", work / "driver.log"
    with (
        running([python, script, "worker", url], worker_log, cwd=_SCRIPTS) as worker,
        running([python, script, "driver", url], driver_log, cwd=_SCRIPTS) as driver,
    ):
        yield PeerContestant(
            worker, Obedient(driver, lambda: f"{last_words(worker_log)} | {last_words(driver_log)}")
        )
