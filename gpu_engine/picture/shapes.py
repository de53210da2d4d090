"""The shapes a picture is made of. Pixels, from the upper left corner; colours as `#rrggbb`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Anchor: TypeAlias = Literal["start", "middle", "end"]


@dataclass(frozen=True, slots=True)
class Rect:
    """`title` is shown where a reader points at it, if the format can."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str
    width: float = 1.0


@dataclass(frozen=True, slots=True)
class Text:
    """`y` is the base line; `anchor`: which end of the text stands at `x`."""

    x: float
    y: float
    text: str
    size: float = 11.0
    anchor: Anchor = "start"
    fill: str = "#222222"


Shape: TypeAlias = Rect | Line | Text


@dataclass(frozen=True, slots=True)
class Picture:
    """Shapes in the order in which they are painted, on white."""

    width: float
    height: float
    shapes: Sequence[Shape]
