"""`headrace queue`: what waits, what runs, and what went wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.broker.contract import QueueStats
from headrace.cli import options
from headrace.cli.errors import ExitCode
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment


def queue(
    broker: options.Broker = None,
    prefix: options.Prefix = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show what waits, who holds what, retries and dead letters."""
    environment = read_environment()
    url = options.broker_url(broker, environment)
    run_async(_show(url, options.prefix(prefix, environment), as_json))


async def _show(url: str, prefix: str, as_json: bool) -> ExitCode:
    async with connected(url, prefix) as broker:
        stats = await broker.stats()
    if as_json:
        print(json.dumps(as_dict(stats)))
    else:
        _print_tables(Console(), stats)
    return ExitCode.OK


def as_dict(stats: QueueStats) -> dict[str, Any]:
    """For scripts; ages in milliseconds."""
    return {
        "lanes": {lane.value: asdict(each) for lane, each in stats.lanes.items()},
        "leases": [asdict(lease) for lease in stats.leases],
        "retrying": stats.retrying,
        "dead_letters": stats.dead_letters,
    }


def _print_tables(console: Console, stats: QueueStats) -> None:
    lanes = Table("lane", "waiting", "oldest", "leased")
    for lane, each in stats.lanes.items():
        lanes.add_row(
            lane.value, str(each.waiting), age(each.oldest_ms) if each.waiting else "–", str(each.leased)
        )
    console.print(lanes)
    if stats.leases:
        leases = Table("consumer", "lane", "held", "last sign of life")
        for lease in stats.leases:
            leases.add_row(lease.consumer, lease.lane.value, str(lease.held), f"{age(lease.idle_ms)} ago")
        console.print(leases)
    console.print(f"retrying: {stats.retrying}   dead letters: {stats.dead_letters}")


def age(ms: int) -> str:
    """A duration in the two largest units that matter."""
    seconds = ms // 1000
    if seconds < 60:
        return f"{ms / 1000:.1f} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
