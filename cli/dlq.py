"""`headrace dlq`: messages that nobody could or should run, looked at, replayed and removed.

Positions, as `list` shows them, name the letters. A command that is given some that are not there does the
rest, names them on stderr, and exits with 1.
"""

from __future__ import annotations

import base64
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from headrace.broker.contract import Broker, DeadLettered
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.cli import options
from headrace.cli.ages import age, parse_age
from headrace.cli.errors import ExitCode, Mistake
from headrace.cli.letters import Wanted, pages_of, survey_of
from headrace.cli.looking import look, printable
from headrace.cli.numbers import MOST_SHOWN, number
from headrace.cli.running import connected, run_async

dlq = typer.Typer(help="Look at dead letters, replay or remove them.", no_args_is_help=True)

SHOWN_BYTES = 60

Position = Annotated[str, typer.Argument(metavar="POSITION", help="As `headrace dlq list` shows it.")]
Positions = Annotated[
    list[str] | None, typer.Argument(metavar="[POSITION]...", help="As `headrace dlq list` shows them.")
]
All = Annotated[bool, typer.Option("--all", help="All that are there now.")]


@dlq.command("list")
def list_letters(
    limit: Annotated[int, number(low=1, high=MOST_SHOWN, metavar="N", text="Show the latest N.")] = 100,
    broker: options.Broker = None,
    broker_option: options.BrokerOptions = None,
    prefix: options.Prefix = None,
    as_json: options.Json = False,
) -> None:
    """Show the latest dead letters, oldest first."""
    look(
        options.where(broker, broker_option, prefix),
        lambda connection: connection.dead_letters(limit),
        show=_print_list,
        as_data=lambda letters: [as_dict(letter) for letter in letters],
        as_json=as_json,
    )


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
    look(
        options.where(broker, broker_option, prefix),
        lambda connection: _find(connection, position),
        show=_print_letter,
        as_data=as_dict,
        as_json=as_json,
    )


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
    run_async(_replay(options.where(broker, broker_option, prefix), positions or None))


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
    run_async(_purge(options.where(broker, broker_option, prefix), positions or None, at_least_ms, yes))


def _one_of(*given: bool, names: str) -> None:
    if sum(given) != 1:
        raise Mistake(f"which dead letters? Name {names}, one of these")


def _print_list(letters: Sequence[DeadLettered]) -> None:
    if letters:
        Console().print(_table(letters))
    else:
        print("no dead letters")


async def _find(broker: Broker, position: str) -> DeadLettered:
    letter = await broker.dead_letter(position)
    if letter is None:
        raise Mistake(f"there is no dead letter {position}; `headrace dlq list` shows those that are there")
    return letter


def _print_letter(letter: DeadLettered) -> None:
    known = {"position": letter.position, "origin": letter.origin, "reason": letter.reason}
    for name, value in {**known, "age": age(_age_ms(letter)), **letter.headers}.items():
        print(f"{name}: {value}")
    print(flush=True)
    sys.stdout.buffer.write(letter.body + b"\n")


async def _replay(where: options.Where, positions: Sequence[str] | None) -> ExitCode:
    failed = 0
    async with connected(*where) as broker, aclosing(pages_of(broker, positions)) as pages:
        async for page in pages:
            for position in page:
                failed += not await _replay_one(broker, position)
    return ExitCode.SOME_FAILED if failed else ExitCode.OK


async def _replay_one(broker: Broker, position: str) -> bool:
    try:
        ref = await broker.replay(position)
    except BrokerUnavailable:
        raise  # the next one fares no better
    except BrokerError as error:
        print(error, file=sys.stderr)
        return False
    if ref is None:
        _tell_unknown(position)
        return False
    print(ref.request_id, flush=True)
    return True


async def _purge(
    where: options.Where, positions: Sequence[str] | None, at_least_ms: int, yes: bool
) -> ExitCode:
    asked = purged = 0
    async with connected(*where) as broker:
        wanted = _at_least(at_least_ms)
        if not yes:
            wanted = await _confirmed(broker, positions, wanted)
        async with aclosing(pages_of(broker, positions, wanted)) as pages:
            async for page in pages:
                asked += len(page)
                purged += await (broker.discard(page) if positions is None else _purge_named(broker, page))
    print(f"{purged} purged")
    return ExitCode.OK if purged == asked else ExitCode.SOME_FAILED


async def _purge_named(broker: Broker, positions: Sequence[str]) -> int:
    purged = 0
    for position in positions:
        if await broker.discard([position]):
            purged += 1
        else:
            _tell_unknown(position)
    return purged


def _tell_unknown(position: str) -> None:
    print(f"there is no dead letter {printable(position)}", file=sys.stderr)


async def _confirmed(broker: Broker, positions: Sequence[str] | None, wanted: Wanted) -> Wanted:
    """Asks; returns what is agreed to: nothing that comes while the question stands. Raises Mistake for a
    no, and where nobody can be asked."""
    survey = await survey_of(broker, positions, wanted)
    if survey.count:
        _confirm(survey.count)
    return lambda letter: wanted(letter) and letter.at_ms <= survey.newest_ms


def _at_least(age_ms: int) -> Wanted:
    return lambda letter: _age_ms(letter) >= age_ms


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise Mistake(f"{count} dead letters would be removed for good; pass --yes where nobody can be asked")
    if not typer.confirm(f"Remove {count} dead letters for good?"):
        raise Mistake("nothing was removed")


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
        shown = printable(letter.body[:SHOWN_BYTES].decode(errors="replace"))
        table.add_row(letter.position, age(_age_ms(letter)), lane_of(letter), letter.reason, shown)
    return table


def _age_ms(letter: DeadLettered) -> int:
    return max(0, round(time.time() * 1000) - letter.at_ms)
