"""Messages as records: what is published is read back, and what cannot be understood says why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.errors import BrokerError, ReplyNotAllowed
from headrace.broker.kafka.codec import (
    Decoded,
    Record,
    Undecodable,
    chunk_record,
    dead_letter_record,
    decode_record,
    delayed_headers,
    due_ms,
    encode_message,
    forwarded_headers,
    own_headers,
    readable_headers,
    result_record,
    size_of,
)
from headrace.broker.kafka.places import LogPlace
from headrace.broker.message import Claim, Lane, Message, RequestRef
from headrace.broker.names import Names

NAMES = Names("test")
PLACE = LogPlace(Lane.BATCH, "gpu", 3)
POSITION = "test.requests.gpu.batch/3/7"


@dataclass
class Stored:
    """A record as a consumer gives it."""

    value: bytes | None = b"body"
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    key: bytes | None = None
    offset: int = 7
    timestamp: int = 1_000
    topic: str = "test.requests.gpu.batch"
    partition: int = 3


def stored(record: Record, **more: Any) -> Stored:
    return Stored(record.value, record.headers, record.key, **more)


def decoded(record: Stored) -> Decoded:
    found = decode_record(record, PLACE, NAMES)
    assert isinstance(found, Decoded), found
    return found


messages = st.builds(
    Message,
    body=st.binary(max_size=20),
    request_id=st.none() | st.text(min_size=1, max_size=20),
    lane=st.just(Lane.BATCH),
    tenant=st.text(max_size=8),
    content_type=st.sampled_from(["application/json", "application/x-protobuf"]),
    deadline_ms=st.none() | st.integers(0, 10**14),
    reply_to=st.none() | st.just("test.reply.mine"),
    stream=st.booleans(),
    headers=st.dictionaries(st.text(max_size=8).map("x-".__add__), st.text(max_size=8), max_size=3),
    pool=st.just("gpu"),
    queue_timeout_ms=st.none() | st.integers(0, 10**14),
)


@settings(deadline=None, max_examples=100)
@given(messages)
def test_a_message_is_read_back_as_it_was_published(message: Message) -> None:
    record = encode_message(message, NAMES, 3)
    assert (record.topic, record.partition) == ("test.requests.gpu.batch", 3)
    found = decoded(stored(record))
    assert found.message == message
    assert found.ref == RequestRef(message.request_id or POSITION, message.tenant)
    assert (found.position, found.published_ms, found.forwarded) == (POSITION, 1_000, False)


def test_a_claim_is_read_back() -> None:
    claim = Claim("s3://bodies/1", bytes(range(32)), 1 << 20)
    message = Message(b"", "r", Lane.BATCH, claim=claim, pool="gpu")
    assert decoded(stored(encode_message(message, NAMES, 0))).message == message


def test_a_bare_record_is_a_request_of_its_topic_whatever_a_header_says() -> None:
    found = decoded(Stored(headers=[("lane", b"interactive"), ("x-mine", b"1")]))
    assert found.message == Message(b"body", lane=Lane.BATCH, pool="gpu", headers={"x-mine": "1"})
    assert found.ref.request_id == POSITION


def test_identity_and_time_of_publish_survive_delays() -> None:
    first = decoded(Stored(headers=[("x-mine", b"1")]))
    waiting = Stored(
        headers=delayed_headers(Stored(headers=[("x-mine", b"1")]), first, 5_000, "busy"),
        offset=99,
        timestamp=2_000,
    )
    assert due_ms(waiting) == 5_000
    due = Stored(headers=forwarded_headers(waiting, decoded(waiting)), offset=100, timestamp=9_000)
    again = decoded(due)
    assert (again.message, again.ref, again.position, again.published_ms) == (
        first.message,
        first.ref,
        first.position,
        first.published_ms,
    )
    assert again.forwarded
    assert due_ms(due) == 0


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (Stored(value=None), "no value"),
        (Stored(headers=[("tenant", b"\xff\xfe")]), "UTF-8"),
        (Stored(headers=[("x-\ufffd", b"1")]), "name of a header"),
        (Stored(headers=[("deadline", b"tomorrow")]), "deadline"),
        (Stored(headers=[("deadline", b"-5")]), "deadline"),
        (Stored(headers=[("deadline", "²".encode())]), "deadline"),
        (Stored(headers=[("queue-timeout", b"1e3")]), "queue-timeout"),
        (Stored(headers=[("request-id", b"")]), "0 characters"),
        (Stored(headers=[("request-id", b"x" * 513)]), "513 characters"),
        (Stored(headers=[("reply-to", b"somebody.elses")]), "not allowed"),
        (Stored(headers=[("stream", b"maybe")]), "true"),
        (Stored(headers=[("headrace-position", b"anywhere")]), "reserved"),
        (Stored(headers=[("headrace-claim", b"s3://x")]), "headrace-claim"),
        (Stored(headers=[(f"x-{i}", b"") for i in range(300)]), "300 headers"),
    ],
)
def test_what_is_no_message_says_why(record: Stored, said: str) -> None:
    found = decode_record(record, PLACE, NAMES)
    assert isinstance(found, Undecodable)
    assert said in found.reason


def test_a_body_beside_a_claim_is_refused() -> None:
    claim = Claim("s3://bodies/1", bytes(32), 5)
    record = encode_message(Message(b"", claim=claim), NAMES, 0)
    found = decode_record(replace(stored(record), value=b"x"), PLACE, NAMES)
    assert isinstance(found, Undecodable)


@pytest.mark.parametrize(
    "message",
    [
        Message(b"x", headers={"deadline": "5"}),
        Message(b"x", headers={"headrace-position": "5"}),
        Message(b"x", headers={"x": "\ud800"}),
        Message(b"x", headers={"\ud800": "x"}),
        Message(b"x", request_id=""),
        Message(b"x", request_id="\ud800"),
        Message(b"x", tenant="\ud800"),
        Message(b"x", deadline_ms=-1),
    ],
)
def test_what_could_not_be_read_back_is_not_published(message: Message) -> None:
    with pytest.raises(BrokerError):
        encode_message(message, NAMES, 0)


def test_a_reply_topic_must_be_an_allowed_one() -> None:
    with pytest.raises(ReplyNotAllowed, match=r"test\.reply\."):
        encode_message(Message(b"x", reply_to="test.results"), NAMES, 0)


def test_a_dead_letter_keeps_bytes_and_headers_and_says_why_and_whence() -> None:
    record = Stored(value=b"\xff", headers=[("tenant", b"\xfe"), ("x", b"1")], key=b"k")
    letter = dead_letter_record(record, POSITION, "unreadable", NAMES)
    assert (letter.topic, letter.value, letter.key) == ("test.dlq", b"\xff", b"k")
    assert letter.headers[:2] == record.headers
    assert own_headers(letter.headers) == {"tenant": "\ufffd", "x": "1"}
    assert readable_headers(letter.headers)["headrace-reason"] == "unreadable"


def test_a_dead_letter_tells_a_record_without_value_from_an_empty_one() -> None:
    for value, marked in ((None, True), (b"", False)):
        letter = dead_letter_record(Stored(value=value), POSITION, "why", NAMES)
        assert letter.value == b""
        assert ("headrace-no-value" in dict(letter.headers)) == marked
        assert not own_headers(letter.headers)


def test_lines_carry_identity_and_travelling_headers_and_chunks_say_that_they_are_chunks() -> None:
    message = Message(b"x", tenant="acme", reply_to="test.reply.mine", headers={"traceparent": "00"})
    ref = RequestRef("r", "acme")
    line, chunk = result_record(message, ref, b"line", NAMES), chunk_record(message, ref, b"part")
    common = {"traceparent": "00", "tenant": "acme", "request-id": "r"}
    assert (line.topic, line.key, readable_headers(line.headers)) == ("test.reply.mine", b"r", common)
    assert readable_headers(chunk.headers) == {**common, "headrace-kind": "chunk"}


def test_the_size_of_a_record_counts_its_headers() -> None:
    small, large = (encode_message(Message(b"x", headers={"x": "y" * n}), NAMES, 0) for n in (1, 100_000))
    assert size_of(large) - size_of(small) == 99_999
