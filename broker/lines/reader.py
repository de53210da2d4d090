"""Reads a file of lines as a stream: never the whole of it, never more than one line too many.

Rules (reference: OpenAI batch input, and what its trackers show to be needed): a byte order mark at the
start is skipped; lines end at `\\n` bytes and nowhere else, with one `\\r` before it stripped; blank lines
are skipped, but counted, so that an error names the line number that an editor shows.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from headrace.broker.lines.openai import parse_line
from headrace.broker.lines.request import LineError, ParsedRequest
from headrace.broker.lines.strict_json import MAX_LINE_BYTES

BLANK = b" \t\r\n"
FORMAT_BYTES = 6
_FOREIGN = {
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"\xfd7zXZ\x00": "compressed with xz; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8 first",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8 first",
}
GROUP_LINES = 64
GROUP_BYTES = 1 << 20
_SKIP_BYTES = 64 * 1024
_ID_KEPT_WHOLE = 64


def foreign_format(head: bytes) -> str | None:
    """What a file is that begins with these bytes (`FORMAT_BYTES` of them) and cannot hold lines of UTF-8:
    told once, it is clearer than an error for each of its "lines"."""
    return next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), None)


class Line(NamedTuple):
    """A line of the file, its terminator stripped. `raw` is empty where the line was too long to read."""

    number: int
    raw: bytes
    request: ParsedRequest | LineError


class LineReader:
    """Iterates over the lines of a buffered binary file, from where it stands. Exhausted after one pass.

    Each non-blank physical line is yielded exactly once, in order. The second and later lines of a
    `custom_id` become `duplicate_custom_id` errors that name the first. For that, the ids are held in
    memory, exactly: as they are up to 64 characters, as a SHA-256 digest above (about 150 bytes a line).
    """

    def __init__(self, file: BinaryIO, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._file = file
        self._max_line_bytes = max_line_bytes
        self._first_with: dict[str | bytes, int] = {}

    def __iter__(self) -> Iterator[Line]:
        room = self._max_line_bytes + len(codecs.BOM_UTF8) + len(b"\r\n")
        for number in itertools.count(1):
            raw = self._file.readline(room)
            if not raw:
                return
            whole = raw.endswith(b"\n") or len(raw) < room
            blank_rest = whole or self._skip_line()
            if number == 1:
                raw = raw.removeprefix(codecs.BOM_UTF8)
            if raw.strip(BLANK) or not blank_rest:
                yield self._line(number, raw.removesuffix(b"\n").removesuffix(b"\r"))

    def _skip_line(self) -> bool:
        """Reads on to the end of the line; whether what was skipped is blank."""
        blank = True
        while rest := self._file.readline(_SKIP_BYTES):
            blank = blank and not rest.strip(BLANK)
            if rest.endswith(b"\n"):
                break
        return blank

    def _line(self, number: int, raw: bytes) -> Line:
        request = self._refuse_duplicate(number, parse_line(raw, number, max_bytes=self._max_line_bytes))
        return Line(number, raw if len(raw) <= self._max_line_bytes else b"", request)

    def _refuse_duplicate(self, number: int, request: ParsedRequest | LineError) -> ParsedRequest | LineError:
        custom_id = request.custom_id
        if custom_id is None:
            return request
        first = self._first_with.setdefault(_key(custom_id), number)
        if first == number or isinstance(request, LineError):
            return request
        message = f"custom_id is that of line {first}; it must be unique in the file"
        return LineError("duplicate_custom_id", message, "custom_id", custom_id, number)


def _key(custom_id: str) -> str | bytes:
    if len(custom_id) <= _ID_KEPT_WHOLE:
        return custom_id
    return hashlib.sha256(custom_id.encode()).digest()


def grouped(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in groups for one round trip each, bounded both ways: by number, and by bytes."""
    group: list[Line] = []
    size = 0
    for line in lines:
        group.append(line)
        size += len(line.raw)
        if len(group) >= GROUP_LINES or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
