"""Ranks as processes of their own: they compute, and no end of one leaves another behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from itertools import count

import pytest

from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.parallel import processes
from headrace.gpu_engine.parallel.crew import RanksLost
from headrace.gpu_engine.parallel.load import open_model
from headrace.gpu_engine.parallel.processes import WorkerProcess, start_workers
from headrace.gpu_engine.parallel.runner import lead
from headrace.gpu_engine.runner import load_runner
from headrace.gpu_engine.scheduling.step import Chunk, StepPlan
from tests.support.drive import GREEDY, Sequences
from tests.support.tiny_models import TinyModel, tiny_model

__all__ = ["tiny_model"]

PATIENCE_S = 30
PLAN = StepPlan(1, [Chunk("a", [3, 4, 5], 0, [1], True, GREEDY)])

# Starts a child, tells its id, and waits to be killed.
PARENT = """
import sys
from headrace.gpu_engine.parallel.processes import start_workers
[worker] = start_workers(1)
print(worker.process.pid, flush=True)
sys.stdin.read()
"""

# The same with a child that stops when it is bound to this process, and is waited for until then.
PARENT_OF_STOPPED = """
import os, signal, sys
from headrace.gpu_engine.lifeline import die_with
parent = os.getpid()
child = os.fork()
if child == 0:
    die_with(parent, b"child")
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(child, os.WUNTRACED)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_process_computes_its_share_and_its_death_ends_the_engine_with_a_sentence(
    tiny_model: TinyModel,
) -> None:
    values = {"model": str(tiny_model("llama")), "num_kv_blocks": 96, "backend": "torch", "threads": 1}
    config = EngineConfig.model_validate({**values, "tensor_parallel_size": 2})
    prompts = [[5, 9, 33], [7] * 20]
    [worker] = start_workers(1)
    runner = lead(config, open_model(config), [worker])
    expected = Sequences(load_runner(EngineConfig.model_validate(values)), prompts, 5, seed=1).run(30)
    assert Sequences(runner, prompts, 5, seed=2).run(9) == expected
    worker.process.kill()
    for _ in range(2):
        with pytest.raises(RanksLost, match="Rank 1 of the model's 2 was killed by SIGKILL, and the engine"):
            runner.launch(PLAN)


def test_a_process_that_is_told_nothing_more_ends_by_itself() -> None:
    [worker] = start_workers(1)
    worker.connection.close()
    assert worker.wait(PATIENCE_S) == 0


def test_where_one_process_cannot_start_the_others_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[WorkerProcess] = []
    start, calls = processes._start, count(1)

    def start_one() -> WorkerProcess:
        if next(calls) == 2:
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(start())
        return started[0]

    monkeypatch.setattr(processes, "_start", start_one)
    with pytest.raises(BlockingIOError):
        start_workers(2)
    [worker] = started
    assert worker.wait(0) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the end of its connection ends a rank")
@pytest.mark.parametrize("script", [PARENT, PARENT_OF_STOPPED])
def test_no_process_outlives_the_first_rank_not_even_one_that_does_not_run(script: str) -> None:
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        assert is_over(child)


def is_over(pidfd: int) -> bool:
    """Whether the process ends in time; a pidfd is readable then."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * PATIENCE_S))
