"""`headrace consumers`: who serves what."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from headrace.broker.contract import ConsumerEntry
from headrace.broker.message import Lane
from headrace.cli import options
from headrace.cli.errors import ExitCode
from headrace.cli.queue import age
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment


def consumers(
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show the consumers that are up, and which models they serve."""
    environment = read_environment()
    url = options.broker_url(broker, broker_option, environment)
    run_async(_show(url, options.prefix(prefix, environment), as_json))


async def _show(url: str, prefix: str, as_json: bool) -> ExitCode:
    async with connected(url, prefix) as broker:
        entries = sorted(await broker.consumers(), key=lambda entry: (entry.pool, entry.name))
    if as_json:
        print(json.dumps([asdict(entry) for entry in entries]))
    elif entries:
        Console().print(_table(entries))
    else:
        print("no consumer is up")
    return ExitCode.OK


def _table(entries: Sequence[ConsumerEntry]) -> Table:
    table = Table("consumer", "pool", "lanes", "models", "slots", "last seen")
    table.columns[0].no_wrap = True
    for entry in entries:
        table.add_row(
            entry.name,
            entry.pool or "–",
            "all" if set(entry.lanes) == set(Lane) else ", ".join(lane.value for lane in entry.lanes),
            ", ".join(entry.serves.models),
            str(entry.serves.slots),
            f"{age(entry.idle_ms)} ago",
        )
    return table
