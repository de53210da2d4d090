from __future__ import annotations

import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.lines.reader import Line, LineReader
from headrace.broker.lines.request import LineError, ParsedRequest

BOM = b"\xef\xbb\xbf"


def valid(custom_id: str) -> bytes:
    body = {"messages": [{"role": "user", "content": "a\u2028b"}]}
    fields = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(fields, ensure_ascii=False).encode()


def read(data: bytes, max_line_bytes: int = 1000) -> list[Line]:
    return list(LineReader(io.BytesIO(data), max_line_bytes=max_line_bytes))


def test_a_plain_file_is_read_line_by_line() -> None:
    lines = read(valid("a") + b"\n" + valid("b") + b"\n")
    assert [(line.number, line.raw, line.request.custom_id) for line in lines] == [
        (1, valid("a"), "a"),
        (2, valid("b"), "b"),
    ]


def test_the_last_line_needs_no_newline() -> None:
    assert [line.raw for line in read(valid("a") + b"\n" + valid("b"))] == [valid("a"), valid("b")]


def test_a_byte_order_mark_is_skipped_at_the_start_and_only_there() -> None:
    first, second = read(BOM + valid("a") + b"\n" + BOM + valid("b"))
    assert first.raw == valid("a")
    assert isinstance(second.request, LineError)


def test_a_carriage_return_before_the_newline_is_stripped() -> None:
    assert [line.raw for line in read(valid("a") + b"\r\n" + valid("b") + b"\r\n")] == [
        valid("a"),
        valid("b"),
    ]


def test_blank_lines_are_skipped_but_counted() -> None:
    assert [line.number for line in read(BOM + b"\n \t\r\n" + valid("a") + b"\n\n\n" + b"x\n\n")] == [3, 6]


def test_line_separators_of_unicode_do_not_split_a_line() -> None:
    (line,) = read(valid("a\x85b\u2029c"))
    assert isinstance(line.request, ParsedRequest)
    assert line.request.custom_id == "a\x85b\u2029c"


def test_an_error_names_its_physical_line_and_spares_its_neighbours() -> None:
    lines = read(valid("a") + b"\n\n\xff\n" + valid("b"))
    assert [type(line.request) for line in lines] == [ParsedRequest, LineError, ParsedRequest]
    assert isinstance(lines[1].request, LineError)
    assert (lines[1].number, lines[1].request.line) == (3, 3)


def test_the_second_line_of_a_custom_id_names_the_first() -> None:
    long = "x" * 200
    lines = read(b"\n".join([valid("a"), valid("b"), valid("a"), valid(long), valid(long)]))
    assert [line.number for line in lines if isinstance(line.request, LineError)] == [3, 5]
    request = lines[2].request
    assert isinstance(request, LineError)
    assert (request.code, request.param, request.custom_id) == ("duplicate_custom_id", "custom_id", "a")
    assert "line 1" in request.message


class Counting(io.BytesIO):
    """Remembers the largest piece that was read from it."""

    largest = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        data = super().readline(-1 if size is None else size)
        self.largest = max(self.largest, len(data))
        return data


def test_a_line_that_is_too_long_is_reported_without_being_read_whole() -> None:
    file = Counting(valid("a") + b"\n" + b"x" * 1_000_000 + b"\n" + valid("b"))
    lines = list(LineReader(file, max_line_bytes=1000))
    assert [line.number for line in lines] == [1, 2, 3]
    request = lines[1].request
    assert isinstance(request, LineError)
    assert request.unreadable
    assert lines[1].raw == b""
    assert file.largest < 70_000


def test_a_long_line_that_begins_with_blanks_does_not_vanish() -> None:
    (line,) = read(b" " * 5000 + b"x", max_line_bytes=100)
    assert isinstance(line.request, LineError)


def test_a_line_of_exactly_the_cap_is_read_and_one_more_byte_is_too_long() -> None:
    cap = len(valid("a"))
    for end in (b"", b"\n", b"\r\n"):
        (line,) = read(valid("a") + end, cap)
        assert isinstance(line.request, ParsedRequest)
        (line,) = read(valid("ab") + end, cap)
        assert isinstance(line.request, LineError)


pieces = st.sampled_from(
    [b"\n", b"\r", b"\r\n", b" ", b"\t", BOM, b"x" * 30, b'{"a":1}', b"\xff", b"\x0b", b"\x85"]
)


@settings(deadline=None, max_examples=300)
@given(data=st.lists(pieces | st.binary(max_size=8), max_size=30).map(b"".join), cap=st.integers(1, 40))
def test_every_line_that_is_not_blank_is_yielded_once_with_its_number(data: bytes, cap: int) -> None:
    physical = data.removeprefix(BOM).split(b"\n")
    stripped = [line.removesuffix(b"\r") for line in physical]
    expected = [
        (number, line if len(line) <= cap else b"")
        for number, line in enumerate(stripped, start=1)
        if line.strip(b" \t\r")
    ]
    assert [(line.number, line.raw) for line in read(data, cap)] == expected
