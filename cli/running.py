"""From a command's coroutine to its exit status."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import typer

from headrace.broker.connect import connect
from headrace.broker.contract import Broker
from headrace.cli.errors import ExitCode


def run_async(work: Coroutine[Any, Any, ExitCode]) -> None:
    """Runs it to its end and exits with its status; Ctrl-C ends it in order, with 130."""
    try:
        code = asyncio.run(work)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    raise typer.Exit(code)


@asynccontextmanager
async def connected(url: str, prefix: str) -> AsyncIterator[Broker]:
    """A connection that is closed again; raises BrokerError with a sentence where there is none."""
    broker = await connect(url, prefix=prefix)
    try:
        yield broker
    finally:
        await broker.close()


def stop_signals() -> asyncio.Queue[signal.Signals]:
    """A queue that gets every request to stop from now on: Ctrl-C, SIGTERM, a terminal that closes."""
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, arrived.put_nowait, number)
    return arrived
