"""Whatever becomes of the benchmark, its children go with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.shared.processes import family

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PARENT = """
import sys, time
from pathlib import Path
from benchmarks.shared.processes import running
nap = "import time; print(1, flush=True); time.sleep(60)"
with running([sys.executable, "-c", nap], Path(sys.argv[1])) as child:
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(60)
"""


def is_gone(pid: int) -> bool:
    """Gone, or a zombie that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's signal at the parent's death")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_a_benchmark_that_was_killed(end: signal.Signals, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert not is_gone(child)
        os.kill(parent.pid, end)
        parent.wait()
    limit = time.monotonic() + 10
    while not is_gone(child) and time.monotonic() < limit:
        time.sleep(0.01)
    assert is_gone(child)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_another_thread_started_belongs_to_the_family() -> None:
    children: list[subprocess.Popen[bytes]] = []
    threaded = threading.Event()

    def start() -> None:
        children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        threaded.set()
        done.wait()

    done = threading.Event()
    thread = threading.Thread(target=start)
    thread.start()
    try:
        threaded.wait()
        assert children[0].pid in family(os.getpid())
    finally:
        done.set()
        thread.join()
        children[0].kill()
        children[0].communicate()
