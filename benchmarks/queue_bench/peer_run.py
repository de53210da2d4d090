"""Runs one peer: its environment, its worker, and the driver that publishes and reads results back."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.queue_bench.noop_run import Contestant
from benchmarks.queue_bench.peer_list import Peer
from benchmarks.queue_bench.processes import cpu_seconds, family, held, last_words, running
from benchmarks.queue_bench.report import CannotRun

_SCRIPTS = Path(__file__).parent / "peers"


def environment(peer: Peer, cache: Path) -> Path:
    """The Python of the peer's own environment, built at the first use; raises CannotRun."""
    folder = cache / "peers" / peer.name
    python, done = folder / "bin" / "python", folder / ".complete"
    wanted = " ".join((*peer.packages, *peer.bare))
    if done.exists() and done.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    uv = _uv()
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    _run(uv, "pip", "install", "--quiet", "--python", str(python), *peer.packages)
    if peer.bare:
        _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", str(python), *peer.bare)
    done.write_text(wanted)
    return python


def versions(peer: Peer, python: Path) -> str:
    """`celery 5.7.0, kombu 5.7.0`: of what matters."""
    listed = json.loads(_run(_uv(), "pip", "list", "--python", str(python), "--format", "json"))
    found = {package["name"]: package["version"] for package in listed}
    return ", ".join(f"{name} {found[name]}" for name in peer.shown if name in found)


class PeerContestant(Contestant):
    """`worker` and `driver`: processes of the peer's script."""

    def __init__(
        self, worker: subprocess.Popen[str], driver: subprocess.Popen[str], logs: tuple[Path, Path]
    ) -> None:
        self._worker, self._driver, self._logs = worker, driver, logs

    def publish(self, count: int) -> float:
        return self._tell(f"publish {count}")

    def collect(self) -> float:
        return self._tell("collect")

    def cpu(self) -> float:
        return cpu_seconds(family(self._worker.pid))

    def held(self) -> contextlib.AbstractContextManager[None]:
        return held(family(self._worker.pid))

    def _tell(self, line: str) -> float:
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        try:
            self._driver.stdin.write(line + "\n")
            self._driver.stdin.flush()
            answer = self._driver.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise CannotRun(f"its driver ended: {' | '.join(last_words(log) for log in self._logs)}")
        return float(json.loads(answer)["seconds"])


@contextlib.contextmanager
def running_peer(peer: Peer, python: Path, url: str, work: Path) -> Iterator[PeerContestant]:
    """Worker and driver of a peer, against the server at `url`."""
    script = _SCRIPTS / f"with_{peer.name}.py"
    worker_log, driver_log = work / "worker.log", work / "driver.log"
    with (
        running([python, script, "worker", url], worker_log, cwd=_SCRIPTS) as worker,
        running([python, script, "driver", url], driver_log, cwd=_SCRIPTS) as driver,
    ):
        yield PeerContestant(worker, driver, (worker_log, driver_log))


def _uv() -> str:
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise CannotRun("uv is needed to build the peers' environments: `pip install uv`")
    return found


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise CannotRun(f"`{Path(argv[0]).name} {argv[1]}` failed: {done.stderr.strip()[-300:]}")
    return done.stdout
