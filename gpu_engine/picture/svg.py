"""Pictures as SVG 1.1, which every browser shows."""

from __future__ import annotations

from xml.sax.saxutils import escape

from headrace.gpu_engine.picture.shapes import Line, Picture, Rect, Shape, Text


def to_svg(picture: Picture) -> str:
    """The document; equal pictures give equal text."""
    size = f'width="{_number(picture.width)}" height="{_number(picture.height)}"'
    box = f'viewBox="0 0 {_number(picture.width)} {_number(picture.height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="sans-serif">'
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, paper, *map(_element, picture.shapes), "</svg>", ""])


def _element(shape: Shape) -> str:
    match shape:
        case Rect(x, y, width, height, fill, title):
            place = _attributes(x=x, y=y, width=width, height=height)
            return f'<rect {place} fill="{fill}"' + (f">{_title(title)}</rect>" if title else "/>")
        case Line(x1, y1, x2, y2, stroke, width):
            ends = _attributes(x1=x1, y1=y1, x2=x2, y2=y2)
            return f'<line {ends} stroke="{stroke}" stroke-width="{_number(width)}"/>'
        case Text(x, y, text, size, anchor, fill):
            style = f'font-size="{_number(size)}" text-anchor="{anchor}" fill="{fill}"'
            return f"<text {_attributes(x=x, y=y)} {style}>{_escape(text)}</text>"


def _title(title: str) -> str:
    return f"<title>{_escape(title)}</title>"


def _attributes(**values: float) -> str:
    return " ".join(f'{name}="{_number(value)}"' for name, value in values.items())


def _number(value: float) -> str:
    """At most two decimals: a hundredth of a pixel is enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _escape(text: str) -> str:
    """XML has no way to say a control character, not even escaped."""
    return escape("".join(letter if letter.isprintable() else "�" for letter in text))
