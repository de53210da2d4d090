"""Options that take a number: each has a lowest and a highest one, and refuses what is no number at all.

Without a highest one, `inf` and `1e18` would pass here, and end a child process or a script of the broker
later.
"""

from __future__ import annotations

from typing import Any

import typer

MOST_TOKENS = (1 << 31) - 1  # what a request's counts hold
MOST_REQUESTS = 1_000_000_000
MOST_BYTES = 1 << 50
MOST_SHOWN = 1_000_000  # letters, steps
MOST_DEATHS = 1_000_000
MOST_PROCESSES = 1_000


def number(*, low: float, high: float, metavar: str, text: str) -> Any:
    """An option for typer, with `text` as its help; whether it is a whole one says its parameter's type."""
    return typer.Option(metavar=metavar, min=low, max=high, help=text)
