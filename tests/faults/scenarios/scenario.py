"""What a scenario is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeAlias

from tests.faults.brokers import Kind
from tests.faults.run import Run

Inject: TypeAlias = Callable[[Run], Awaitable[None]]
STEP_MS, FIRST_TOKEN_MS = 10, 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """`inject` runs while answers stream; it is the same on every broker. `brokers`: where it can be.
    `selected`: where it is one for `make test`; all run in `make chaos`. `proxied`: consumers and gateways
    reach the broker through our proxy. `breaks`: see `Run`. `clock_s`: by how much the wall clock of its
    consumers is wrong at first (None: it is the machine's). `deadly`: a body with this word kills whoever
    parses it."""

    name: str
    inject: Inject
    brokers: tuple[Kind, ...] = ("redis", "kafka")
    selected: tuple[Kind, ...] = ("redis", "kafka")
    options: tuple[str, ...] = ()
    consumers: int = 2
    proxied: bool = False
    breaks: bool = False
    clock_s: int | None = None
    deadly: str = ""
    first_token_ms: int = FIRST_TOKEN_MS

    @property
    def shape(self) -> Hashable:
        """Scenarios of one shape can share their processes."""
        within = self.clock_s, self.deadly, self.first_token_ms
        return self.options, self.consumers, self.proxied, *within
