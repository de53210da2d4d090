"""`headrace queue`: what waits, what runs, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.broker.contract import Broker, QueueStats
from headrace.broker.message import DEFAULT_POOL
from headrace.cli import options
from headrace.cli.ages import age
from headrace.cli.looking import look


def queue(
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show what waits, who holds what, retries and dead letters."""
    look(
        options.where(broker, broker_option, prefix),
        _see,
        show=_print_tables,
        as_data=as_dict,
        as_json=as_json,
    )


async def _see(broker: Broker) -> dict[str, QueueStats]:
    return {pool: await broker.stats(pool) for pool in sorted(await broker.pools())}


def as_dict(pools: Mapping[str, QueueStats]) -> dict[str, Any]:
    """For scripts; ages in milliseconds. The default pool stands at the top, the others under `pools`."""
    named = {pool: _pool_dict(stats) for pool, stats in pools.items() if pool != DEFAULT_POOL}
    stats = pools[DEFAULT_POOL]
    return {**_pool_dict(stats), "dead_letters": stats.dead_letters, "pools": named}


def _pool_dict(stats: QueueStats) -> dict[str, Any]:
    return {
        "lanes": {lane.value: asdict(each) for lane, each in stats.lanes.items()},
        "leases": [asdict(lease) for lease in stats.leases],
        "retrying": stats.retrying,
    }


def _print_tables(pools: Mapping[str, QueueStats]) -> None:
    console = Console()
    for pool, stats in pools.items():
        if pool != DEFAULT_POOL:
            console.print(f"\npool {pool}")
        console.print(_lanes(stats))
        if stats.leases:
            console.print(_leases(stats))
    retrying = sum(stats.retrying for stats in pools.values())
    console.print(f"retrying: {retrying}   dead letters: {pools[DEFAULT_POOL].dead_letters}")


def _lanes(stats: QueueStats) -> Table:
    table = Table("lane", "waiting", "oldest", "leased", "")
    for lane, each in stats.lanes.items():
        oldest = age(each.oldest_ms) if each.waiting else "–"
        table.add_row(
            lane.value, str(each.waiting), oldest, str(each.leased), "paused" if each.paused else ""
        )
    return table


def _leases(stats: QueueStats) -> Table:
    table = Table("consumer", "lane", "held", "last sign of life")
    for lease in stats.leases:
        table.add_row(lease.consumer, lease.lane.value, str(lease.held), f"{age(lease.idle_ms)} ago")
    return table
