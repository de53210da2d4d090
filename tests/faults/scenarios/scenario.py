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
    reach the broker through our proxy. `breaks`: see `Run`. `clock`: its consumers have a wall clock of their
    own."""

    name: str
    inject: Inject
    brokers: tuple[Kind, ...] = ("redis", "kafka")
    selected: tuple[Kind, ...] = ("redis", "kafka")
    options: tuple[str, ...] = ()
    consumers: int = 2
    proxied: bool = False
    breaks: bool = False
    clock: bool = False
    first_token_ms: int = FIRST_TOKEN_MS

    @property
    def shape(self) -> Hashable:
        """Scenarios of one shape can share their processes."""
        return self.options, self.consumers, self.proxied, self.clock, self.first_token_ms
