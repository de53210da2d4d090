from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator

import pytest

from headrace.consumer.batches import BatchThread, JobBroken


@pytest.fixture
async def thread() -> AsyncIterator[BatchThread]:
    batches = BatchThread("test")
    yield batches
    batches.close()


async def test_each_caller_gets_its_own_result(thread: BatchThread) -> None:
    results = await asyncio.gather(*(thread.run(functools.partial(pow, n, 2)) for n in range(50)))
    assert results == [n * n for n in range(50)]


async def test_an_error_is_told_to_its_caller_alone(thread: BatchThread) -> None:
    def fail() -> None:
        raise ValueError("mine")

    failed, fine = await asyncio.gather(thread.run(fail), thread.run(lambda: "fine"), return_exceptions=True)
    assert isinstance(failed, ValueError)
    assert fine == "fine"


class Panic(BaseException):
    """What a panic of native code arrives as: no `Exception`."""


@pytest.mark.parametrize("raised", [Panic("at the disco"), StopIteration(), SystemExit(1)])
async def test_what_is_no_ordinary_error_ends_one_job_and_strands_no_neighbour(
    thread: BatchThread, raised: BaseException
) -> None:
    def fail() -> None:
        raise raised

    async with asyncio.timeout(5):
        failed, fine = await asyncio.gather(
            thread.run(fail), thread.run(lambda: "fine"), return_exceptions=True
        )
    assert isinstance(failed, JobBroken)
    assert failed.__cause__ is raised
    assert fine == "fine"
    assert await thread.run(lambda: "next") == "next"


async def test_jobs_run_in_one_thread_that_is_not_the_loops(thread: BatchThread) -> None:
    idents = await asyncio.gather(*(thread.run(threading.get_ident) for _ in range(5)))
    assert len(set(idents)) == 1
    assert idents[0] != threading.get_ident()


async def test_a_job_behind_a_long_one_does_not_hold_up_the_result_in_front(thread: BatchThread) -> None:
    gate = threading.Event()
    first = asyncio.create_task(thread.run(lambda: gate.wait(0.01)))
    second = asyncio.create_task(thread.run(lambda: gate.wait(5)))
    await first  # longer than a slice: its result comes back while the next one runs
    assert not second.done()
    gate.set()
    assert await second


async def test_a_job_whose_caller_is_gone_is_not_begun(thread: BatchThread) -> None:
    gate, begun = threading.Event(), list[str]()
    running = asyncio.create_task(thread.run(lambda: gate.wait(5)))
    await asyncio.sleep(0)
    gone = asyncio.create_task(thread.run(lambda: begun.append("gone")))
    stays = asyncio.create_task(thread.run(lambda: begun.append("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    gate.set()
    await asyncio.gather(running, stays)
    assert begun == ["stays"]
