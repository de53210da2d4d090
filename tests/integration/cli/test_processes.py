"""Supervision, on tiny scripts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.processes import Child, ChildFailed, Command, Patience
from tests.integration.cli.conftest import alive

HASTY = Patience(first_delay_s=0.001, longest_delay_s=0.002, attempts=3)

READY = """
import json, os, sys, time
def ready():
    scratch = sys.argv[1] + ".new"
    json.dump({"script": os.getpid()}, open(scratch, "w"))
    os.replace(scratch, sys.argv[1])
"""
SERVE = READY + "ready()\ntime.sleep(60)\n"
STUBBORN = READY + "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nready()\ntime.sleep(60)\n"

Make = Callable[[str], Child]


class Said(list[str]):
    def __call__(self, name: str, line: str) -> None:
        self.append(f"{name}: {line}")


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
async def make(tmp_path: Path, said: Said) -> AsyncIterator[Make]:
    children: list[Child] = []

    def make_child(script: str) -> Child:
        ready_file = tmp_path / f"ready-{len(children)}"
        argv = (sys.executable, "-S", "-c", script, str(ready_file))
        children.append(Child(Command("c", "script", argv, ready_file), said, HASTY))
        return children[-1]

    yield make_child
    for child in children:
        await child.stop(0)


async def until_ready(child: Child, without: int | None = None) -> int:
    """The pid of the process once it is ready; `without`: of its successor."""
    async with asyncio.timeout(30):
        while True:
            ready = child.ready()
            if ready is not None and ready["script"] != without:
                return int(ready["script"])
            await asyncio.sleep(0.005)


async def until_said(said: Said, line: str) -> None:
    async with asyncio.timeout(30):
        while True:
            if line in said:
                return
            await asyncio.sleep(0.005)


async def test_a_child_is_ready_when_its_own_process_says_so(make: Make) -> None:
    child = make(SERVE)
    assert child.ready() is None
    child.start()
    assert await until_ready(child) == child.pid


async def test_a_child_that_dies_is_started_again(make: Make, said: Said) -> None:
    child = make(SERVE)
    child.start()
    first = await until_ready(child)
    os.kill(first, signal.SIGKILL)
    second = await until_ready(child, without=first)
    assert alive(second)
    assert child.restarts == 1
    assert said == ["c: c ended with status -9; starting it again"]


async def test_stop_ends_the_process_and_its_supervision(make: Make) -> None:
    child = make(SERVE)
    child.start()
    pid = await until_ready(child)
    await child.stop(grace_s=30)
    await child.wait()
    assert not alive(pid)
    assert child.ready() is None


async def test_a_process_that_ignores_the_stop_is_killed_after_the_grace(make: Make) -> None:
    child = make(STUBBORN)
    child.start()
    pid = await until_ready(child)
    await child.stop(grace_s=0.05)
    assert not alive(pid)


async def test_a_process_that_dies_at_its_start_again_and_again_is_given_up(make: Make) -> None:
    child = make("import sys; sys.exit(7)")
    child.start()
    with pytest.raises(ChildFailed, match="status 7") as caught:
        await child.wait()
    assert not caught.value.mistake
    assert child.restarts == HASTY.attempts - 1


async def test_a_users_mistake_at_the_start_is_given_up_at_once_with_its_sentence(
    make: Make, said: Said
) -> None:
    child = make("import sys; print('loading'); sys.exit(print('headrace: no such model') or 2)")
    child.start()
    with pytest.raises(ChildFailed, match=r"^no such model$") as caught:
        await child.wait()
    assert caught.value.mistake
    assert child.restarts == 0
    assert said == ["c: loading"], "the sentence is told by whoever gives up, once"


UNREACHABLE = """
import sys
def tried():
    open(sys.argv[1] + ".tries", "a").write("x")
    return len(open(sys.argv[1] + ".tries").read())
def unreachable():
    sys.exit(print("headrace: nobody answers") or 75)
"""


async def test_a_broker_that_is_slow_to_answer_ends_no_child_for_good(make: Make, said: Said) -> None:
    child = make(UNREACHABLE + "tried() > 6 or unreachable()\n" + SERVE)
    child.start()
    await until_ready(child)
    assert child.restarts == 6 > HASTY.attempts
    assert said == ["c: nobody answers; starting it again"] * 6


async def test_a_broker_that_never_answers_ends_a_child_after_a_while(tmp_path: Path, said: Said) -> None:
    patience = replace(HASTY, unreachable_s=0.0)
    argv = (sys.executable, "-S", "-c", UNREACHABLE + "unreachable()", str(tmp_path / "ready"))
    child = Child(Command("c", "script", argv, tmp_path / "ready"), said, patience)
    child.start()
    with pytest.raises(ChildFailed, match=r"^nobody answers$") as caught:
        await child.wait()
    assert caught.value.mistake


async def test_what_the_parts_of_a_child_say_while_it_is_ended_before_it_was_ready_is_no_news(
    make: Make, said: Said
) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('my parent is gone'))\n"
        "print('loading', flush=True); time.sleep(60)"
    )
    child = make(script)
    child.start()
    await until_said(said, "c: loading")
    await child.stop(grace_s=30)
    assert said == ["c: loading"]


async def test_its_end_is_noticed_while_a_grandchild_still_holds_its_output(make: Make) -> None:
    child = make("import subprocess, sys; subprocess.Popen(['sleep', '20']); sys.exit(7)")
    child.start()
    with pytest.raises(ChildFailed):
        await asyncio.wait_for(child.wait(), 10)


async def test_a_child_that_was_never_started_can_be_stopped(make: Make) -> None:
    await make(SERVE).stop(grace_s=30)
