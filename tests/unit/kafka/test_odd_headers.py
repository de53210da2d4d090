"""A record whose header names are not UTF-8 is read like any other, and so are its neighbours."""

from __future__ import annotations

from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from headrace.broker.kafka.codec import dead_letter_record
from headrace.broker.kafka.odd_headers import tolerate_odd_headers
from headrace.broker.names import Names

PLACEHOLDER = "x-##"


def batch_with_odd_header() -> bytes:
    """Three records; the name of a header of the second one is made odd behind the library's back."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 16)
    for offset, name in enumerate(("x-one", PLACEHOLDER, "x-grün")):
        builder.append(offset, 5, b"key", b"body %d" % offset, [(name, b"1"), ("tenant", b"acme")])
    data = bytearray(builder.build()).replace(PLACEHOLDER.encode(), b"x-\xff\xfe")
    return bytes(data)


def test_a_record_with_an_odd_header_name_and_its_neighbours_are_read() -> None:
    tolerate_odd_headers()
    batch = MemoryRecords(batch_with_odd_header()).next_batch()
    records = list(batch)
    assert [record.value for record in records] == [b"body 0", b"body 1", b"body 2"]
    assert [name for record in records for name, _ in record.headers[:1]] == [
        "x-one",
        "x-\ufffd\ufffd",
        "x-grün",
    ]
    assert all(record.headers[1] == ("tenant", b"acme") for record in records)
    letter = dead_letter_record(records[1], "here", "odd", Names())
    assert letter.headers[0] == ("x-\ufffd\ufffd", b"1")
    assert letter.value == b"body 1"
