"""Calls that hang hold up nobody but who waits for them, and not for long."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.broker.blocking_calls import BlockingCalls


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hangs in a test is let go at its end."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_call_returns_and_raises_as_if_it_were_here() -> None:
    calls = BlockingCalls("test", at_most=2, patience_s=5)
    assert await calls.run(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await calls.run(lambda: 1 // 0)


async def test_one_that_hangs_is_given_up(gate: threading.Event) -> None:
    calls = BlockingCalls("test", at_most=2, patience_s=0.01)
    with pytest.raises(TimeoutError):
        await calls.run(gate.wait)


async def test_those_that_hang_keep_their_places_and_take_nobody_elses(gate: threading.Event) -> None:
    calls = BlockingCalls("test", at_most=2, patience_s=0.01)
    before = threading.active_count()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            await calls.run(gate.wait)
    assert threading.active_count() <= before + 2
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 5) == "free"


async def test_a_place_is_free_again_when_what_hung_is_over(gate: threading.Event) -> None:
    calls = BlockingCalls("test", at_most=1, patience_s=0.02)
    with pytest.raises(TimeoutError):
        await calls.run(gate.wait)
    gate.set()
    for _ in range(100):
        try:
            assert await calls.run(lambda: "next") == "next"
            return
        except TimeoutError:
            continue
    raise AssertionError("the place was never free again")


async def test_a_thread_that_cannot_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = BlockingCalls("test", at_most=1, patience_s=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            await calls.run(lambda: "mine")
    assert await calls.run(lambda: "mine") == "mine"


async def test_a_caller_that_is_cancelled_gives_its_place_back_when_its_call_is_over() -> None:
    calls, gate = BlockingCalls("test", at_most=1, patience_s=5), threading.Event()
    gone = asyncio.create_task(calls.run(gate.wait))
    await asyncio.sleep(0)
    waits = asyncio.create_task(calls.run(lambda: "mine"))
    gone.cancel()
    gate.set()
    assert await waits == "mine"


def test_one_that_hangs_does_not_keep_the_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from headrace.broker.blocking_calls import BlockingCalls\n"
        "calls = BlockingCalls('test', at_most=1, patience_s=0.01)\n"
        "async def main():\n"
        "    await asyncio.gather(calls.run(threading.Event().wait), return_exceptions=True)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], timeout=30, check=True)
