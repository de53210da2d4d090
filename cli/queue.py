"""`headrace queue`: what waits, what runs, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.broker.contract import Broker, ConsumerEntry, QueueStats, Stray
from headrace.broker.message import DEFAULT_POOL, Lane
from headrace.cli import options
from headrace.cli.ages import age
from headrace.cli.looking import look, printable
from headrace.cli.unserved import unserved


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
        show=_print,
        as_data=as_dict,
        as_json=as_json,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is: by pool, and beside the pools."""

    pools: Mapping[str, QueueStats]
    strays: Sequence[Stray]
    consumers: Sequence[ConsumerEntry]


async def _see(broker: Broker) -> Seen:
    pools = {pool: await broker.stats(pool) for pool in sorted(await broker.pools())}
    return Seen(pools, await broker.strays(), await broker.consumers())


def as_dict(seen: Seen) -> dict[str, Any]:
    """For scripts; ages in milliseconds. The default pool stands at the top, the others under `pools`."""
    named = {pool: _pool_dict(seen, pool) for pool in seen.pools if pool != DEFAULT_POOL}
    letters = seen.pools[DEFAULT_POOL].dead_letters
    strays = [asdict(stray) for stray in seen.strays]
    return {**_pool_dict(seen, DEFAULT_POOL), "dead_letters": letters, "pools": named, "strays": strays}


def _pool_dict(seen: Seen, pool: str) -> dict[str, Any]:
    stats = seen.pools[pool]
    return {
        "lanes": {lane.value: asdict(each) for lane, each in stats.lanes.items()},
        "leases": [asdict(lease) for lease in stats.leases],
        "retrying": stats.retrying,
        "consumers": sum(entry.pool == pool for entry in seen.consumers),
    }


def _print(seen: Seen) -> None:
    console = Console()
    for pool, stats in seen.pools.items():
        if pool != DEFAULT_POOL:
            console.print(f"\npool {pool}")
        console.print(_lanes(stats))
        if stats.leases:
            console.print(_leases(stats))
        if (sentence := unserved(pool, stats, seen.consumers)) is not None:
            console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    retrying = sum(stats.retrying for stats in seen.pools.values())
    console.print(f"retrying: {retrying}   dead letters: {seen.pools[DEFAULT_POOL].dead_letters}")
    for stray in seen.strays:
        console.print(stray_line(stray), highlight=False, markup=False, soft_wrap=True)


def stray_line(stray: Stray) -> str:
    """Says that nobody reads it, and what to do."""
    front, _, lane = stray.queue.rpartition(".")
    entries = "1 entry" if stray.entries == 1 else f"{stray.entries} entries"
    where = f"nobody reads {printable(stray.queue)} ({entries}): "
    if lane in tuple(Lane):
        return f"{where}start a consumer with --pool {printable(front.rpartition('.')[2])}, or delete it"
    lanes = ", ".join(lane.value for lane in Lane)
    return f"{where}its name ends in no lane ({lanes}); publish them to one, and delete it"


def _lanes(stats: QueueStats) -> Table:
    table = Table("lane", "waiting", "oldest", "leased", "state")
    for lane, each in stats.lanes.items():
        oldest = age(each.oldest_ms) if each.waiting else "–"
        table.add_row(
            lane.value, str(each.waiting), oldest, str(each.leased), "paused" if each.paused else "open"
        )
    return table


def _leases(stats: QueueStats) -> Table:
    table = Table("consumer", "lane", "held", "last sign of life")
    for lease in stats.leases:
        table.add_row(lease.consumer, lease.lane.value, str(lease.held), f"{age(lease.idle_ms)} ago")
    return table
