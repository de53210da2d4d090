"""The engine as a child process, seen from its consumer.

    event loop ──send──────────────────────► pipe ──► engine process
    event loop ◄─receive── at most 64 ◄───── pipe ◄──┘

A pipe can block in both directions, in the middle of a message too, when the other side is stopped or
killed; so ours never blocks (see `engine_pipe`), and nothing that the engine does delays the event loop. When
the consumer falls behind, it stops reading and the engine waits in its pipe: memory stays bounded. What is
sent is bounded by the requests in flight.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Protocol

from headrace.consumer.engine_pipe import EnginePipe
from headrace.gpu_engine.api import FromEngine, Shutdown, ToEngine
from headrace.gpu_engine.codec import decode_message, encode_message
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.host import Pipe, run_engine

RECEIVED_AT_MOST = 64
EXIT_POLL_S = 0.005


class EngineDied(Exception):
    """The process is gone; everything that it sent was received. `exit_code`: negative for a signal."""

    def __init__(self, exit_code: int | None) -> None:
        super().__init__(f"the engine process ended with exit code {exit_code}")
        self.exit_code = exit_code


class EngineHandle(Protocol):
    """An engine that runs somewhere else. A handle lives as long as its process."""

    @property
    def pid(self) -> int: ...

    def send(self, message: ToEngine) -> None:
        """Never blocks; goes nowhere when the engine is dead."""

    async def receive(self) -> FromEngine:
        """The next message. Raises EngineDied, again and again, behind the last one."""

    def kill(self) -> None:
        """Ends the process at once; `receive` will tell."""

    async def close(self, patience_s: float = 5.0) -> None:
        """Ends the process: asks, waits, kills. Returns once it is gone."""


class EngineProcess:
    """Starts an engine process (spawned, so that it inherits no lock, thread or connection of ours).

    Must be made in a thread that lives on, in a running event loop: the child dies with the thread that
    spawned it. Loading goes on after the return; `Ready` or `Unusable` will be the first message.
    `main`: what the process runs.
    """

    def __init__(self, config: EngineConfig, main: Callable[[bytes, Pipe], None] = run_engine) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe(duplex=True)
        self._process = context.Process(
            target=main, args=(config.model_dump_json().encode(), theirs), name="engine", daemon=True
        )
        self._process.start()
        theirs.close()
        pid = self._process.pid
        assert pid is not None
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self._dead = False  # receive has told, or close was called
        self._told = False  # the end stands in the queue
        self._pipe = EnginePipe(ours, self._pump)
        self._loop.add_reader(self._process.sentinel, self._exited)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def backlog(self) -> int:
        """Messages of the engine that were read from the pipe and not received yet."""
        return self._received.qsize()

    def send(self, message: ToEngine) -> None:
        if not self._dead:
            self._pipe.send(encode_message(message))

    async def receive(self) -> FromEngine:
        message = None if self._dead else await self._received.get()
        if message is None:
            self._dead = True
            raise EngineDied(self._process.exitcode)
        self._pump()
        return message

    def kill(self) -> None:
        self._process.kill()

    async def close(self, patience_s: float = 5.0) -> None:
        self.send(Shutdown())
        self._dead = True
        self._pump()  # reads on, so that the engine is not stopped in its pipe
        if not await self._gone(patience_s):
            self.kill()
            await self._gone(None)
        await asyncio.to_thread(self._process.join, 1.0)  # so that its exit code is known
        self._loop.remove_reader(self._process.sentinel)
        self._pipe.close()

    async def _gone(self, timeout_s: float | None) -> bool:
        return bool(await asyncio.to_thread(wait, [self._process.sentinel], timeout_s))

    def _pump(self) -> None:
        """From the pipe into the queue, as much as there is room for; behind the last message, the end."""
        while (self._dead or self.backlog < RECEIVED_AT_MOST) and (frame := self._pipe.take()) is not None:
            if not self._dead:  # else nobody receives any more
                self._received.put_nowait(decode_message(frame))
        full = not self._dead and self.backlog >= RECEIVED_AT_MOST
        self._pipe.want(not full)
        if self._pipe.ended and not full and not self._told and not self._process.is_alive():
            self._told = True
            self._received.put_nowait(None)

    def _exited(self) -> None:
        """The process is gone; its last words may still be in the pipe."""
        self._loop.remove_reader(self._process.sentinel)
        if self._process.is_alive():  # the sentinel closes a moment before the exit code is known
            self._loop.call_later(EXIT_POLL_S, self._exited)
            return
        self._pipe.read_rest()
        self._pump()
