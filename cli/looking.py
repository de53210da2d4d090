"""What the commands that only look have in common: one question to the broker, and its answer for people or,
with `--json`, for scripts."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.broker.contract import Broker
from headrace.cli.errors import ExitCode
from headrace.cli.options import Where
from headrace.cli.running import connected, run_async

T = TypeVar("T")


def look(
    where: Where,
    see: Callable[[Broker], Awaitable[T]],
    *,
    show: Callable[[T], None],
    as_data: Callable[[T], Any],
    as_json: bool,
) -> None:
    """Prints what `see` found: by `show`, or what `as_data` makes of it as one line of JSON."""
    run_async(_look(where, see, (lambda found: print(json.dumps(as_data(found)))) if as_json else show))


async def _look(where: Where, see: Callable[[Broker], Awaitable[T]], tell: Callable[[T], None]) -> ExitCode:
    async with connected(*where) as broker:
        found = await see(broker)
    tell(found)
    return ExitCode.OK


def printable(text: str) -> str:
    """What others wrote, without the characters that would command a terminal."""
    return "".join(char if char.isprintable() else "·" for char in text)
