"""`headrace trace`: draws what `--trace-path` recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.errors import Mistake
from headrace.cli.numbers import MOST_REQUESTS as MOST_STEPS
from headrace.cli.numbers import number
from headrace.gpu_engine.picture.png import PngUnavailable, write_png
from headrace.gpu_engine.picture.svg import to_svg
from headrace.gpu_engine.picture.timeline import Axis, draw_timeline
from headrace.gpu_engine.trace import TraceError, read_trace


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What an engine wrote for --trace-path.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="X.svg|X.png", help="The picture.")] = Path(
        "trace.svg"
    ),
    by: Annotated[Axis, typer.Option(help="What runs from left to right.")] = "time",
    first: Annotated[int, number(low=1, high=MOST_STEPS, metavar="N", text="First step to show.")] = 1,
    last: Annotated[
        int | None, number(low=1, high=MOST_STEPS, metavar="N", text="Last step to show.")
    ] = None,
) -> None:
    """Draw a recorded run: a row for each request, and the KV memory."""
    if out.suffix not in (".svg", ".png"):
        raise Mistake(f"--out takes a file that ends in .svg or .png, not {out.name!r}")
    try:
        recorded = read_trace(file).between(first, last)
        picture = draw_timeline(recorded, by)
        if out.suffix == ".png":
            write_png(picture, out)
        else:
            out.write_text(to_svg(picture), encoding="utf-8")
    except (TraceError, PngUnavailable) as error:
        raise Mistake(str(error)) from error
    print(f"{out}: {len(recorded.steps)} steps")
