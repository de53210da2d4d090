"""The engine as a child process, seen from its consumer.

    event loop ──send──► queue ──writer thread──► pipe ──► engine process
    event loop ◄─receive── at most 64 ◄─reader thread── pipe ◄──┘

A pipe can block in both directions, in the middle of a message too, when the other side is stopped or
killed; so two threads do the pipe work, and nothing that the engine does delays the event loop. When the
consumer falls behind, the reader stops reading and the engine waits in its pipe: memory stays bounded.
What is sent is bounded by the requests in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from multiprocessing.connection import wait
from typing import Protocol

from headrace.gpu_engine.api import FromEngine, Shutdown, ToEngine
from headrace.gpu_engine.codec import decode_message, encode_message
from headrace.gpu_engine.config import EngineConfig
from headrace.gpu_engine.host import run_engine

RECEIVED_AT_MOST = 64


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
    """

    def __init__(self, config: EngineConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe(duplex=True)
        self._process = context.Process(
            target=run_engine, args=(config.model_dump_json().encode(), theirs), name="engine", daemon=True
        )
        self._process.start()
        theirs.close()
        pid = self._process.pid
        assert pid is not None
        self._pid = pid
        self._loop = asyncio.get_running_loop()
        self._received: asyncio.Queue[FromEngine | None] = asyncio.Queue()
        self._room = threading.Semaphore(RECEIVED_AT_MOST)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dead = False  # receive has told, or close was called
        self._threads = [
            threading.Thread(target=self._read, name=f"engine-{pid}-reader", daemon=True),
            threading.Thread(target=self._write, name=f"engine-{pid}-writer", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def backlog(self) -> int:
        """Messages of the engine that were read from the pipe and not received yet."""
        return self._received.qsize()

    def send(self, message: ToEngine) -> None:
        if not self._dead:
            self._outgoing.put(encode_message(message))

    async def receive(self) -> FromEngine:
        message = None if self._dead else await self._received.get()
        if message is None:
            self._dead = True
            raise EngineDied(self._process.exitcode)
        self._room.release()
        return message

    def kill(self) -> None:
        self._process.kill()

    async def close(self, patience_s: float = 5.0) -> None:
        self.send(Shutdown())
        self._dead = True
        self._room.release()  # the reader goes on, so that the engine is not stopped in its pipe
        if not await self._gone(patience_s):
            self.kill()
            await self._gone(None)
        self._outgoing.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, 1.0)
        self._connection.close()

    async def _gone(self, timeout_s: float | None) -> bool:
        return bool(await asyncio.to_thread(wait, [self._process.sentinel], timeout_s))

    # ------------------------------------------------------------------------------ the two threads

    def _read(self) -> None:
        """Until the process is dead and its last message was read."""
        with contextlib.suppress(EOFError, OSError):
            while self._connection in wait([self._connection, self._process.sentinel]):
                message = decode_message(self._connection.recv_bytes())
                if not self._dead:  # else nobody receives any more
                    self._room.acquire()
                    self._deliver(message)
        self._process.join(1.0)  # the pipe may close a moment before the exit code is known
        self._deliver(None)

    def _deliver(self, message: FromEngine | None) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop was closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._received.put_nowait, message)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (data := self._outgoing.get()) is not None:
                self._connection.send_bytes(data)
