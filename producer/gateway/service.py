"""The gateway as a process: connect, serve until told to stop, drain."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path

from headrace.broker.connect import connect
from headrace.producer.gateway.address import address
from headrace.producer.gateway.server import Gateway
from headrace.producer.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)


async def run_gateway(settings: GatewaySettings) -> int:
    """Serves until SIGTERM or SIGINT, then drains; a second signal cuts the grace short. Returns 0.

    Raises BrokerError or GatewayError with a sentence where it cannot start.
    """
    broker = await connect(settings.broker.get_secret_value(), prefix=settings.prefix)
    try:
        gateway = Gateway(broker, settings)
        try:
            await _serve(gateway, settings)
        finally:
            await gateway.drain(0)
    finally:
        await broker.close()
    return 0


async def _serve(gateway: Gateway, settings: GatewaySettings) -> None:
    """Returns once a signal came and the drain is over, or a second signal came."""
    where = address(settings.host, await gateway.start())
    log.info("gateway serves on %s", where)
    if settings.ready_file is not None:
        write_ready_file(settings.ready_file, where)
    stops = _stop_signals()
    await stops.get()
    log.info("gateway drains for up to %g s", settings.drain_grace_s)
    draining = asyncio.ensure_future(gateway.drain(settings.drain_grace_s))
    again = asyncio.ensure_future(stops.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if draining.done():
        await draining


def write_ready_file(path: Path, address: str) -> None:
    """Says, in one atomic step, where this process serves."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps({"gateway": os.getpid(), "grpc": address}))
    scratch.replace(path)


def _stop_signals() -> asyncio.Queue[signal.Signals]:
    """A queue that gets every SIGTERM and SIGINT from now on."""
    arrived: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived.put_nowait, number)
    return arrived
