"""Where a JSON value ends in a text that goes on, or is not whole yet."""

from __future__ import annotations

import enum
import re

SPACE = " \t\r\n"

# What JSON is made of. Possessive, so that a long string without its end costs no more than its length.
_WORDS = ("true", "false", "null")
_PIECE = re.compile(
    r'"(?:[^"\\]++|\\.)*+"|(?P<open>[{\[])|(?P<close>[}\]])|(?:[ \t\r\n,:0-9eE.+-]|true|false|null)++',
    re.DOTALL,
)


class Span(enum.Enum):
    UNFINISHED = enum.auto()
    """It may still become a value."""
    NO_VALUE = enum.auto()
    """It cannot become one, whatever follows."""


def end_of_value(text: str, start: int) -> int | Span:
    """The place behind the object or array that begins at `start`. Whether it is valid between its brackets
    is for a parser to say; what no JSON can hold ends the search."""
    depth, place = 0, start
    while place < len(text):
        piece = _PIECE.match(text, place)
        if piece is None:
            is_begun = text[place] == '"' or any(word.startswith(text[place:]) for word in _WORDS)
            return Span.UNFINISHED if is_begun else Span.NO_VALUE
        depth += (piece.lastgroup == "open") - (piece.lastgroup == "close")
        place = piece.end()
        if depth == 0:
            return place if piece.lastgroup == "close" else Span.NO_VALUE
    return Span.UNFINISHED


def skip_space(text: str, start: int) -> int:
    """The place of the first character from `start` on that is no space of JSON."""
    return len(text) - len(text[start:].lstrip(SPACE))


def held_back(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark`, and is not all of it."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
