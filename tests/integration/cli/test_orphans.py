"""Tests that are killed leave none of our processes behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import alive, eventually
from tests.support.outside_clients import ROOT

RUNNER = """
import json, sys
from pathlib import Path
from tests.support.outside_clients import service

with service(Path(sys.argv[1])) as ready:
    print(json.dumps(ready), flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_service_ends_with_the_test_runner_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUNNER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as runner:
        assert runner.stdout is not None
        ready = json.loads(runner.stdout.readline())
        broker = int((tmp_path / "data" / "broker" / "valkey.lock").read_text())
        ours = [broker, *(pid for pids in ready["pids"].values() for pid in pids)]
        up = supervisor_of(ready["pids"]["gateway"][0])
        assert all(map(alive, [up, *ours]))
        runner.kill()
    eventually(lambda: not any(map(alive, [up, *ours])), "the end of all processes")


def supervisor_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
