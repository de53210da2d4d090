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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("stream.py",), "usage: python examples/stream.py HOST:PORT"),
        (("stream.py", "127.0.0.1:1", "Hi"), "is `headrace up` running there?"),
        (("survive.py",), "usage: python examples/survive.py READY_FILE"),
        (("survive.py", "nowhere.json"), "nowhere.json is no ready file of `headrace up`"),
        (("survive.py", "stream.py"), "stream.py is no ready file of `headrace up`"),
    ],
)
def test_an_example_that_is_called_wrongly_says_so_in_a_line(command: tuple[str, ...], said: str) -> None:
    name, *arguments = command
    result = subprocess.run(
        [sys.executable, name, *arguments], capture_output=True, text=True, cwd=EXAMPLES, check=False
    )
    assert result.returncode == 1
    [line] = result.stderr.splitlines()
    assert said in line


@pytest.mark.slow
def test_the_examples_stream_an_answer_and_survive_a_kill(tmp_path: Path) -> None:
    with running_stack(tmp_path, *SIM, lease_s=1) as stack:
        assert run_example("stream.py", stack.grpc, "Why is the sky blue?").strip()
        said = run_example("survive.py", stack.ready_file)
    assert "0 tokens kept" in said
    assert said.count("started on") == 2, "the first owner, and the one that took over"
    kept = re.search(r"started on .*, ([1-9]\d*) tokens kept", said)
    assert kept is not None, said
    assert 40 <= int(kept[1]) < 120
    assert "finished: 120 tokens" in said
