"""`headrace consumers`: who serves what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from headrace.broker.contract import Broker, ConsumerEntry
from headrace.broker.message import Lane
from headrace.cli import options
from headrace.cli.ages import age
from headrace.cli.looking import look


def consumers(
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show the consumers that are up, and which models they serve."""
    look(
        options.where(broker, broker_option, prefix),
        _see,
        show=_print,
        as_data=lambda entries: [asdict(entry) for entry in entries],
        as_json=as_json,
    )


async def _see(broker: Broker) -> list[ConsumerEntry]:
    return sorted(await broker.consumers(), key=lambda entry: (entry.pool, entry.name))


def _print(entries: Sequence[ConsumerEntry]) -> None:
    if entries:
        Console().print(_table(entries))
    else:
        print("no consumer is up")


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
