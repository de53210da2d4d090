"""Bytes of one line to a JSON object, strictly.

RFC 8259 without the leniences of common readers: no NaN or Infinity, no number that a double or a 64-bit
reader would mangle silently, no invalid UTF-8, no half of a surrogate pair (it could be stored, but never
be written out again), no control characters inside strings. Of duplicate keys the last one wins, as in
JavaScript and Python. Nesting deeper than the interpreter can hold is refused, not crashed on.
"""

from __future__ import annotations

import re

import msgspec

from headrace.broker.lines.refused import Refused, type_name

MAX_LINE_BYTES = 8 * 1024 * 1024

_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u(?P<half>[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_NOT_A_NUMBER = (b"NaN", b"Infinity", b"-Infinity")


def decode_object(raw: bytes) -> dict[str, object]:
    """The object that `raw` holds; `Refused` with code `invalid_json_line` says why there is none."""
    try:
        value = msgspec.json.decode(raw)
    except RecursionError:
        raise too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("invalid_json_line", _reason(raw, str(error))) from None
    if not isinstance(value, dict):
        raise Refused("invalid_json_line", f"the line must be a JSON object, not {type_name(value)}")
    return value


def too_deep() -> Refused:
    return Refused("invalid_json_line", "the line is nested too deeply")


def too_long(max_bytes: int) -> Refused:
    return Refused("invalid_json_line", f"the line is longer than {max_bytes:,} bytes")


def _reason(raw: bytes, said: str) -> str:
    if not _is_utf8(raw):
        return "the line is not valid UTF-8"
    if half := next((m["half"] for m in _ESCAPES.finditer(raw) if m["half"]), None):
        return f"the line holds \\u{half.decode()}, half of a surrogate pair, which is no character"
    at = _AT_BYTE.search(said)
    if at and raw[int(at[1]) :].startswith(_NOT_A_NUMBER):
        return f"the line holds NaN or Infinity at byte {at[1]}, which JSON does not know"
    what = said.removeprefix("JSON is malformed: ").partition(" - at `")[0]
    return f"the line is not valid JSON: {what[:1].lower()}{what[1:]}"


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
