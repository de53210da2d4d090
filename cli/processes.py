"""Child processes under supervision: started, awaited, restarted with backoff, stopped in order.

start ──► running ──► ready ──► died ──► backoff ──► start …
            │ before it was ever ready: exit 2, several deaths, or exit 75 for minutes: given up (ChildFailed)
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.errors import SENTENCE, ExitCode
from headrace.cli.ready_file import read_ready

KILL_WAIT_S = 5.0
LAST_WORDS_S = 0.2
UNREACHABLE_S = 300.0  # a broker that we have just started ourselves answers by then, or never


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `ready_file`: written by the process once it works, with its own pid under `kind`.
    `env` is added to our own environment."""

    name: str
    kind: str
    argv: Sequence[str]
    ready_file: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Patience:
    """When to restart, and when to give up. A run of `healthy_s` seconds forgets earlier deaths. The longest
    delay is short: what serves again and again between its deaths is missed more than its starts cost.
    `attempts`: deaths before the process was ever ready that are tolerated; `unreachable_s`: for how long it
    may say that its broker cannot be reached at the moment."""

    first_delay_s: float = 0.2
    longest_delay_s: float = 2.0
    healthy_s: float = 10.0
    attempts: int = 5
    unreachable_s: float = UNREACHABLE_S

    def delay_s(self, deaths: int) -> float:
        """Exponential, with jitter so that children do not come back in step."""
        delay = min(self.longest_delay_s, self.first_delay_s * 2.0 ** (deaths - 1))
        return delay * random.uniform(0.75, 1.0)


class ChildFailed(Exception):
    """A child that will not come up. `mistake`: it says that the user can put it right."""

    def __init__(self, name: str, status: int, why: str) -> None:
        super().__init__(why)
        self.name = name
        self.mistake = status in (ExitCode.COULD_NOT_RUN, ExitCode.UNREACHABLE)


class Child:
    """One process and its successors. `say(name, line)` gets what it prints; it must not raise."""

    def __init__(self, command: Command, say: Callable[[str, str], None], patience: Patience) -> None:
        self.command = command
        self.restarts = 0
        self._say = say
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._last_line = ""
        self._stopping = asyncio.Event()
        self._supervising: asyncio.Task[None] | None = None
        self._was_ready = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def ready(self) -> dict[str, Any] | None:
        """What the running process wrote about itself; None while it is not ready or not there."""
        content = read_ready(self.command.ready_file)
        if self.pid is None or content is None or content.get(self.command.kind) != self.pid:
            return None
        self._was_ready = True
        return content

    def start(self) -> None:
        """Keeps the process alive from now on, until `stop`."""
        self._supervising = asyncio.ensure_future(self._supervise())

    async def wait(self) -> None:
        """Returns after `stop`; raises ChildFailed where keeping it alive is hopeless."""
        assert self._supervising is not None, "start it first"
        await asyncio.shield(self._supervising)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM; SIGKILL after the grace. Returns once the process is gone."""
        if self._supervising is None:
            return
        self._stopping.set()
        self.signal(signal.SIGTERM)
        _, alive = await asyncio.wait({self._supervising}, timeout=grace_s)
        if alive:
            self.signal(signal.SIGKILL)
            await asyncio.wait({self._supervising}, timeout=KILL_WAIT_S)

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _supervise(self) -> None:
        deaths, crashes, first = 0, 0, time.monotonic()
        while not self._stopping.is_set():
            began = time.monotonic()
            status = await self._run_once()
            if self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - began > self._patience.healthy_s else deaths + 1
            crashes += status != ExitCode.UNREACHABLE
            self._give_up_if_hopeless(status, crashes, time.monotonic() - first)
            self._say(self.command.name, f"{self._why(status)}; starting it again")
            await self._pause(self._patience.delay_s(deaths))
            self.restarts += 1

    async def _run_once(self) -> int:
        """One life of the process; returns its status (negative: the signal that killed it)."""
        self.command.ready_file.unlink(missing_ok=True)
        self._last_line = ""
        async with self._listening() as output:
            process = await asyncio.create_subprocess_exec(
                *self.command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self.command.env},
                # A session of its own: Ctrl-C reaches us alone, and we stop our children in order.
                start_new_session=True,
            )
            self._process = process
            if self._stopping.is_set():  # stop came while the process was being made
                self.signal(signal.SIGTERM)
            try:
                return await process.wait()
            finally:
                self._process = None

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[int]:
        """A pipe whose lines are heard. Not asyncio's own: with that, `wait` returns only when the last
        process that inherited the pipe is gone."""
        read_end, write_end = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb", 0)
        )
        listening = asyncio.ensure_future(self._listen(reader))
        try:
            try:
                yield write_end
            finally:
                os.close(write_end)
            # What the process itself said is in the pipe already.
            await asyncio.wait({listening}, timeout=LAST_WORDS_S)
        finally:
            listening.cancel()
            transport.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await reader.read(1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._hear(line)
        if rest:
            self._hear(rest)

    def _hear(self, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip()
        if not line:
            return
        self._last_line = line
        if self._stopping.is_set() and not self._was_ready:
            return  # that its parts found each other gone when it was ended is no news
        if not line.startswith(SENTENCE):  # that one is told by whoever decides what follows from it
            self._say(self.command.name, line)

    def _give_up_if_hopeless(self, status: int, crashes: int, tried_s: float) -> None:
        if self._was_ready:
            return
        match status:
            case ExitCode.COULD_NOT_RUN:
                hopeless = True
            case ExitCode.UNREACHABLE:
                hopeless = tried_s >= self._patience.unreachable_s
            case _:
                hopeless = crashes >= self._patience.attempts
        if hopeless:
            raise ChildFailed(self.command.name, status, self._why(status))

    def _why(self, status: int) -> str:
        if self._last_line.startswith(SENTENCE):
            return self._last_line.removeprefix(SENTENCE)
        cause = f"{self.command.name} ended with status {status}"
        return f"{cause}; its last words: {self._last_line}" if self._last_line else cause

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
