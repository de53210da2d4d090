"""Rows of the report: what was measured, what it should be, and whether it is."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table


class CannotRun(Exception):
    """A measurement that this machine, or this state of the project, does not allow; the text says why."""


class Verdict(enum.StrEnum):
    MET = "met"
    MISSED = "missed"
    NO_TARGET = "-"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a value, in the value's own unit."""

    side: Literal["at least", "at most"]
    bound: float

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.side == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.side == 'at least' else '≤'} {number(self.bound)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `value` None: it could not be measured, `note` says why."""

    measurement: str
    what: str
    value: float | None
    unit: str = ""
    target: Target | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return Verdict.NOT_RUN
        if self.target is None:
            return Verdict.NO_TARGET
        return Verdict.MET if self.target.met_by(self.value) else Verdict.MISSED


def missing(measurement: str, what: str, reason: object) -> Row:
    """The row of what could not be measured: it is reported, never left out."""
    return Row(measurement, what, None, note=str(reason) or type(reason).__name__)


def number(value: float) -> str:
    """Three digits that matter, and whole numbers as such."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - len(str(int(abs(value)))) + 1)}f}"


def show(rows: Sequence[Row], header: Mapping[str, str], console: Console) -> None:
    """Prints the header and one table."""
    for name, value in header.items():
        console.print(f"{name}: {value}", highlight=False)
    table = Table("measurement", "what", "value", "target", "verdict", "note")
    for row in rows:
        value = "" if row.value is None else f"{number(row.value)} {row.unit}"
        target = "" if row.target is None else f"{row.target} {row.unit}"
        table.add_row(row.measurement, row.what, value, target, row.verdict, row.note)
    console.print(table)


def as_json(rows: Sequence[Row], header: Mapping[str, str]) -> str:
    """The same, for machines."""
    listed = [asdict(row) | {"verdict": row.verdict.value} for row in rows]
    return json.dumps({"machine": dict(header), "rows": listed}, indent=2, ensure_ascii=False)
