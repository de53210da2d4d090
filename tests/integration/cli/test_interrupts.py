"""Ctrl-C before the command runs: the process ends, and says nothing of our insides."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Runs `headrace queue`, and stands still while it imports one of its modules, until a line comes in.
PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

standstill = sys.argv.pop()

class Standstill(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == standstill:
            print("importing", flush=True)
            sys.stdin.readline()

sys.meta_path.insert(0, Standstill())
from headrace.cli.main import main
main()
"""
MODULES = ("typer", "headrace.cli.settings", "headrace.cli.queue", "rich.console")


@contextmanager
def importing(module: str, *shell: str) -> Iterator[subprocess.Popen[str]]:
    """A `headrace queue` that is in the middle of an import."""
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_BROKER"}
    command = [*shell, sys.executable, "-c", PROGRAM, "queue", module]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("module", MODULES)
def test_an_interrupt_in_the_middle_of_an_import_ends_without_a_trace(module: str) -> None:
    # Whoever runs the tests in the background has them ignore interrupts.
    with importing(module, "env", "--default-signal=INT") as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (130, "")


def test_who_ignores_interrupts_is_not_interrupted() -> None:
    with importing("typer", "sh", "-c", "trap '' INT; exec \"$@\"", "sh") as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate("\n", timeout=30)
        assert (process.returncode, "which broker?" in errors) == (2, True)


def test_the_help_brings_in_nothing_large() -> None:
    script = "import sys; from headrace.cli.app import execute; execute(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "kafka", "redis", "fsspec", "numpy"} & set(done.stdout.split())
