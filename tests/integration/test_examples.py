"""The scripts in `examples/` do what their first lines say, against a running stack."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.stack import running_stack

EXAMPLES = Path(__file__).parents[2] / "examples"
SIM = ("--engine", "sim", "--sim-first-token-ms", "5", "--sim-step-ms", "20", "--sim-tokens", "30")


def run_example(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, EXAMPLES / name, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_examples_stream_an_answer_and_survive_a_kill(tmp_path: Path) -> None:
    with running_stack(tmp_path, *SIM, lease_s=1) as stack:
        assert run_example("stream.py", stack.grpc, "Why is the sky blue?").strip()
        said = run_example("survive.py", stack.ready_file)
    assert "0 tokens kept" in said
    kept = re.search(r"started on .*, ([1-9]\d*) tokens kept", said)
    assert kept is not None, said
    assert 40 <= int(kept[1]) < 120
    assert "finished: 120 tokens" in said
