"""However many dead letters there are, a page of them is chosen, dealt with and forgotten before the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

from headrace.broker.contract import Broker, DeadLettered

Wanted: TypeAlias = Callable[[DeadLettered], bool]

PAGE = 256  # positions


@dataclass(frozen=True, slots=True)
class Survey:
    """How many letters there are, and when the newest of them was buried, by the broker's clock."""

    count: int
    newest_ms: int


async def pages_of(
    broker: Broker, named: Sequence[str] | None, wanted: Wanted = lambda _: True
) -> AsyncGenerator[list[str], None]:
    """Positions: those that are named, whether they are there or not, or of all letters that are wanted."""
    if named is not None:
        for start in range(0, len(named), PAGE):
            yield list(named[start : start + PAGE])
        return
    page: list[str] = []
    async with aclosing(broker.each_dead_letter()) as letters:
        async for letter in letters:
            if wanted(letter):
                page.append(letter.position)
            if len(page) == PAGE:
                yield page
                page = []
    if page:
        yield page


async def survey_of(broker: Broker, named: Sequence[str] | None, wanted: Wanted) -> Survey:
    """Looks at all that `pages_of` would give."""
    count = len(named or ())
    newest_ms = 0
    if named is None:
        async with aclosing(broker.each_dead_letter()) as letters:
            async for letter in letters:
                if wanted(letter):
                    count, newest_ms = count + 1, max(newest_ms, letter.at_ms)
    return Survey(count, newest_ms)
