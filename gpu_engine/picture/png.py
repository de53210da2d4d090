"""Pictures as PNG, through matplotlib where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from headrace.gpu_engine.picture.shapes import Line, Picture, Rect, Shape, Text

DOTS_PER_INCH: Final = 100
POINTS_PER_PIXEL: Final = 0.72
_SIDES: Final = {"start": "left", "middle": "center", "end": "right"}


class PngUnavailable(Exception):
    """PNG cannot be written here; the text is a sentence for the user that says what to do."""


def write_png(picture: Picture, path: Path, scale: float = 2.0) -> None:
    """Writes the picture, `scale` dots for each of its pixels. Raises PngUnavailable."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PngUnavailable(
            "PNG needs matplotlib, which is not installed: `pip install 'headrace[plots]'`, "
            "or name a file that ends in .svg."
        ) from error
    figure = Figure(figsize=(picture.width / DOTS_PER_INCH, picture.height / DOTS_PER_INCH))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, picture.width), ylim=(picture.height, 0))
    axes.set_axis_off()
    for shape in picture.shapes:
        _paint(axes, shape)
    figure.savefig(path, format="png", dpi=DOTS_PER_INCH * scale)


def _paint(axes: Any, shape: Shape) -> None:
    from matplotlib.patches import Rectangle

    match shape:
        case Rect(x, y, width, height, fill):
            axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, linewidth=0))
        case Line(x1, y1, x2, y2, stroke, width):
            axes.plot([x1, x2], [y1, y2], color=stroke, linewidth=width * POINTS_PER_PIXEL)
        case Text(x, y, text, size, anchor, fill):
            points = size * POINTS_PER_PIXEL
            axes.text(x, y, text, fontsize=points, ha=_SIDES[anchor], color=fill, parse_math=False)
