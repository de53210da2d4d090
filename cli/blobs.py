"""`headrace blobs`: the store for large bodies, and what nobody needs of it any more.

Nothing leaves the store by itself, since nothing there says who still needs it. A body is needed while its
message waits, runs, is retried or lies among the dead letters, and for as long as the same body may be sent
again. AGE must be above the longest of these. What can be seen of it here is looked at first: the messages
that wait on the broker, and the dead letters, where one is named.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from typing import Annotated

import typer

from headrace.broker.blobs import BlobStore
from headrace.broker.contract import Broker
from headrace.broker.headers import CLAIM
from headrace.cli import options, service_options
from headrace.cli.ages import age, parse_age
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment

blobs = typer.Typer(help="Look after the store for large bodies.", no_args_is_help=True)

LEAST_AGE = "1d"  # an id may be sent again for as long: that is how long a finished request is known
PATIENCE_S = 7 * 24 * 60 * 60.0  # a large store takes its time

Age = Annotated[str, typer.Option(metavar="AGE", help=f"Those put longer ago: {LEAST_AGE} or more, as 7d.")]


@blobs.command()
def sweep(
    older_than: Age,
    blobs: service_options.Blobs = None,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Drop bodies that no message needs any more.

    AGE must be above the longest time that a message may wait, be retried, or lie among the dead letters.
    With a broker, refuses where something there is older.
    """
    environment = read_environment()
    older_than_ms = parse_age(older_than)
    if older_than_ms < parse_age(LEAST_AGE):
        raise Mistake(
            f"bodies that were put less than {LEAST_AGE} ago may belong to requests that wait, run or are "
            f"sent again; sweep those older than {LEAST_AGE} or more"
        )
    url = service_options.blob_store(blobs, environment)
    if url is None:
        raise Mistake("which store? Pass --blobs URL or set HEADRACE_BLOBS")
    store = BlobStore(url, patience_s=PATIENCE_S)
    if store.folder is not None and not store.folder.is_dir():
        raise Mistake(f"there is no folder {store.folder} to sweep; look at --blobs and HEADRACE_BLOBS")
    named = broker is not None or environment.broker is not None
    where = options.where(broker, broker_option, prefix) if named else None
    run_async(_sweep(store, older_than_ms, where))


async def _sweep(store: BlobStore, older_than_ms: int, where: options.Where | None) -> ExitCode:
    if where is not None:
        async with connected(*where) as broker:
            await _check_waiting(broker, older_than_ms)
            await _check_letters(broker, older_than_ms)
    print(f"{await store.sweep(older_than_ms / 1000)} dropped")
    return ExitCode.OK


async def _check_waiting(broker: Broker, older_than_ms: int) -> None:
    for pool in await broker.pools():
        for lane, stats in (await broker.stats(pool)).lanes.items():
            if stats.waiting and stats.oldest_ms >= older_than_ms:
                name = f"{pool}.{lane.value}" if pool else lane.value
                raise Mistake(
                    f"in the lane {name} a request has waited for {age(stats.oldest_ms)}, and its body may "
                    "be in the store; pass an AGE above that"
                )


async def _check_letters(broker: Broker, older_than_ms: int) -> None:
    until_ms = time.time() * 1000 - older_than_ms
    async with aclosing(broker.each_dead_letter()) as letters:
        async for letter in letters:
            if letter.at_ms > until_ms:
                return  # they come oldest first
            if CLAIM in letter.headers:
                raise Mistake(
                    f"the body of the dead letter {letter.position} is in the store; replay or purge it "
                    "first (`headrace dlq`), or pass a higher AGE"
                )
