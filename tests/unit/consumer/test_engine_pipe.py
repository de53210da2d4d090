from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import pytest

from headrace.consumer.engine_pipe import EnginePipe


@dataclass
class Ends:
    """Ours as the consumer has it, theirs as the engine has it."""

    theirs: Connection[Any, Any]
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    ours: EnginePipe = field(init=False)

    async def take(self) -> bytes:
        async with asyncio.timeout(5):
            while (frame := self.ours.take()) is None:
                self.changed.clear()
                await self.changed.wait()
        return frame


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    ours, theirs = multiprocessing.Pipe(duplex=True)
    both = Ends(theirs)
    both.ours = EnginePipe(ours, both.changed.set)
    yield both
    both.ours.close()
    theirs.close()


@pytest.mark.parametrize("size", [0, 1, 20_000, 3_000_000])
async def test_frames_arrive_whole_in_both_directions(ends: Ends, size: int) -> None:
    frame = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    ends.ours.send(frame)
    assert await asyncio.to_thread(ends.theirs.recv_bytes) == frame
    sending = asyncio.create_task(asyncio.to_thread(ends.theirs.send_bytes, frame))
    assert await ends.take() == frame
    await sending


async def test_many_frames_of_one_turn_arrive_in_order(ends: Ends) -> None:
    for number in range(100):
        ends.ours.send(b"%d" % number)
    received = [await asyncio.to_thread(ends.theirs.recv_bytes) for _ in range(100)]
    assert received == [b"%d" % number for number in range(100)]


async def test_a_pipe_that_is_full_does_not_block_the_sender(ends: Ends) -> None:
    frame = b"x" * 1_000_000
    for _ in range(4):
        ends.ours.send(frame)
        await asyncio.sleep(0)
    assert [len(await asyncio.to_thread(ends.theirs.recv_bytes)) for _ in range(4)] == [len(frame)] * 4


async def test_what_is_not_wanted_stays_with_the_sender(ends: Ends) -> None:
    ends.ours.want(False)
    ends.theirs.send_bytes(b"later")
    await asyncio.sleep(0.02)
    assert ends.ours.take() is None
    ends.ours.want(True)
    assert await ends.take() == b"later"


async def test_to_be_woken_for_nothing_is_not_the_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    read, refusals = os.read, [BlockingIOError()]

    def read_at_the_second_try(fd: int, size: int) -> bytes:
        if refusals:
            raise refusals.pop()
        return read(fd, size)

    monkeypatch.setattr(os, "read", read_at_the_second_try)
    ends.theirs.send_bytes(b"still here")
    assert await ends.take() == b"still here"
    assert not refusals


async def test_the_end_comes_behind_the_last_frame(ends: Ends) -> None:
    ends.theirs.send_bytes(b"last words")
    ends.theirs.close()
    assert await ends.take() == b"last words"
    async with asyncio.timeout(5):
        while not ends.ours.ended:
            ends.changed.clear()
            await ends.changed.wait()
    ends.ours.send(b"goes nowhere, and does not fail")
    await asyncio.sleep(0)
