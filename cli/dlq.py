"""`headrace dlq`: messages that nobody could or should run, looked at, replayed and removed.

Positions, as `list` shows them, name the letters. A command that is given some that are not there does the
rest, names them on stderr, and exits with 1.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.broker.contract import Broker, DeadLettered
from headrace.broker.errors import BrokerError
from headrace.cli import options
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.queue import age
from headrace.cli.running import connected, run_async
from headrace.cli.settings import read_environment

dlq = typer.Typer(help="Look at dead letters, replay or remove them.", no_args_is_help=True)

SHOWN_BYTES = 60
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Position = Annotated[str, typer.Argument(metavar="POSITION", help="As `headrace dlq list` shows it.")]
Positions = Annotated[
    list[str] | None, typer.Argument(metavar="[POSITION]...", help="As `headrace dlq list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


@dlq.command("list")
def list_letters(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show the latest N.")] = 100,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show the latest dead letters, oldest first."""
    url, prefix = _where(broker, broker_option, prefix)
    run_async(_list(url, prefix, limit, as_json))


@dlq.command()
def show(
    position: Position,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show one dead letter with its whole body.

    Reason and headers, an empty line, and the body as it came.
    """
    url, prefix = _where(broker, broker_option, prefix)
    run_async(_show(url, prefix, position, as_json))


@dlq.command()
def replay(
    positions: Positions = None,
    everything: All = False,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Put dead letters on their lanes again.

    They are new requests then; prints their ids.
    """
    _one_of(bool(positions), everything, names="POSITIONs or --all")
    url, prefix = _where(broker, broker_option, prefix)
    run_async(_replay(url, prefix, positions))


@dlq.command()
def purge(
    positions: Positions = None,
    everything: All = False,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Those older than AGE: 90s, 30m, 12h or 7d.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
) -> None:
    """Remove dead letters for good."""
    _one_of(bool(positions), everything, older_than is not None, names="POSITIONs, --all or --older-than")
    at_least_ms = parse_age(older_than) if older_than is not None else 0
    url, prefix = _where(broker, broker_option, prefix)
    run_async(_purge(url, prefix, positions, at_least_ms, yes))


def _where(broker: str | None, broker_option: list[str] | None, prefix: str | None) -> tuple[str, str]:
    environment = read_environment()
    url = options.broker_url(broker, broker_option, environment)
    return url, options.prefix(prefix, environment)


def _one_of(*given: bool, names: str) -> None:
    if sum(given) != 1:
        raise Mistake(f"which dead letters? Name {names}, one of these")


def parse_age(text: str) -> int:
    """Milliseconds of `90s`, `30m`, `12h` or `7d`; raises Mistake for anything else."""
    parts = _AGE.fullmatch(text)
    if parts is None:
        raise Mistake(f"{text[:40]!r} is no age; write 90s, 30m, 12h or 7d")
    return round(float(parts[1]) * _UNIT_MS[parts[2]])


async def _list(url: str, prefix: str, limit: int, as_json: bool) -> ExitCode:
    async with connected(url, prefix) as broker:
        letters = await broker.dead_letters(limit)
    if as_json:
        print(json.dumps([as_dict(letter) for letter in letters]))
    elif letters:
        Console().print(_table(letters))
    else:
        print("no dead letters")
    return ExitCode.OK


async def _show(url: str, prefix: str, position: str, as_json: bool) -> ExitCode:
    async with connected(url, prefix) as broker:
        letter = await broker.dead_letter(position)
    if letter is None:
        raise Mistake(f"there is no dead letter {position}; `headrace dlq list` shows those that are there")
    if as_json:
        print(json.dumps(as_dict(letter)))
        return ExitCode.OK
    known = {"position": letter.position, "origin": letter.origin, "reason": letter.reason}
    for name, value in {**known, "age": age(_age_ms(letter)), **letter.headers}.items():
        print(f"{name}: {value}")
    print(flush=True)
    sys.stdout.buffer.write(letter.body + b"\n")
    return ExitCode.OK


async def _replay(url: str, prefix: str, positions: Sequence[str] | None) -> ExitCode:
    failed = 0
    async with connected(url, prefix) as broker:
        for position in positions or [letter.position for letter in await _all(broker)]:
            try:
                ref = await broker.replay(position)
            except BrokerError as error:
                ref, why = None, str(error)
            else:
                why = f"there is no dead letter {position}"
            if ref is None:
                failed += 1
                print(why, file=sys.stderr)
            else:
                print(ref.request_id, flush=True)
    return ExitCode.SOME_FAILED if failed else ExitCode.OK


async def _purge(
    url: str, prefix: str, positions: Sequence[str] | None, at_least_ms: int, yes: bool
) -> ExitCode:
    async with connected(url, prefix) as broker:
        chosen = list(
            positions or [letter.position for letter in await _all(broker) if _age_ms(letter) >= at_least_ms]
        )
        if chosen and not yes:
            _confirm(len(chosen))
        purged = await broker.discard(chosen) if chosen else 0
    print(f"{purged} purged")
    return ExitCode.OK if purged == len(chosen) else ExitCode.SOME_FAILED


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise Mistake(f"{count} dead letters would be removed for good; pass --yes where nobody can be asked")
    if not typer.confirm(f"Remove {count} dead letters for good?"):
        raise Mistake("nothing was removed")


async def _all(broker: Broker) -> list[DeadLettered]:
    """Those that are there now; what a replay brings back meanwhile is not among them."""
    count = (await broker.stats()).dead_letters
    return await broker.dead_letters(count) if count else []


def as_dict(letter: DeadLettered) -> dict[str, Any]:
    """For scripts. A body that is no text stands under `body_base64` in place of `body`."""
    try:
        body = {"body": letter.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(letter.body).decode()}
    return {
        "position": letter.position,
        "origin": letter.origin,
        "lane": lane_of(letter),
        "reason": letter.reason,
        "at_ms": letter.at_ms,
        "headers": dict(letter.headers),
        **body,
    }


def lane_of(letter: DeadLettered) -> str:
    """The lane it stood in, with its pool: what the name of its queue says behind `requests.`."""
    queue = letter.origin.partition("/")[0]
    return queue.partition(".requests.")[2] or queue


def _table(letters: Sequence[DeadLettered]) -> Table:
    table = Table("position", "age", "lane", "reason", "begins")
    table.columns[0].no_wrap = True  # it is there to be copied
    for letter in letters:
        body = letter.body[:SHOWN_BYTES].decode(errors="replace")
        shown = "".join(char if char.isprintable() else "·" for char in body)
        table.add_row(letter.position, age(_age_ms(letter)), lane_of(letter), letter.reason, shown)
    return table


def _age_ms(letter: DeadLettered) -> int:
    return max(0, round(time.time() * 1000) - letter.at_ms)
