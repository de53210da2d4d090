"""`headrace lane`: no consumer takes from a lane that is paused; what runs goes on."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.broker.message import Lane
from headrace.cli import options
from headrace.cli.errors import ExitCode
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment

lane = typer.Typer(help="Pause a lane, or let it go on.", no_args_is_help=True)

Name = Annotated[Lane, typer.Argument(metavar="LANE", help="Service class.")]


@lane.command()
def pause(
    name: Name,
    pool: options.Pool = None,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Let the requests of a lane wait.

    No consumer takes from it until it is resumed; what runs goes on.
    """
    in_pool = options.pool(pool, read_environment())
    run_async(_set(options.where(broker, broker_option, prefix), name, in_pool, paused=True))


@lane.command()
def resume(
    name: Name,
    pool: options.Pool = None,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Let consumers take from a lane again."""
    in_pool = options.pool(pool, read_environment())
    run_async(_set(options.where(broker, broker_option, prefix), name, in_pool, paused=False))


async def _set(where: options.Where, name: Lane, pool: str, *, paused: bool) -> ExitCode:
    async with connected(*where) as broker:
        await (broker.pause(name, pool) if paused else broker.resume(name, pool))
    shown = f"{name.value} of pool {pool}" if pool else name.value
    print(f"{shown} is paused" if paused else f"{shown} goes on")
    return ExitCode.OK
