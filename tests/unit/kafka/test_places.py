"""Positions, places, keys: what is written is read back, and nothing else passes for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.kafka.places import (
    LogPlace,
    Position,
    java_partition,
    librdkafka_partition,
    log_key,
    parse_cursor,
    parse_log_key,
    parse_place,
    parse_position,
)
from headrace.broker.message import Lane, RequestRef
from headrace.broker.names import Names

NAMES = Names("a.b")
places = st.builds(
    LogPlace,
    st.sampled_from(Lane),
    st.from_regex(r"[A-Za-z0-9_-]{0,8}", fullmatch=True),
    st.integers(0, 99),
)
texts = st.text(max_size=12)


@settings(deadline=None, max_examples=60)
@given(places, st.integers(0, 10**15))
def test_positions_places_and_cursors_are_read_back(place: LogPlace, offset: int) -> None:
    assert parse_position(NAMES, Position(place, offset).text(NAMES)) == Position(place, offset)
    assert parse_place(place.text) == place
    assert parse_cursor(f"{place.text}/{offset}") == (place, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "r",
        "a.b.requests.batch",
        "a.b.requests.batch/0",
        "a.b.requests.batch/0/x",
        "a.b.requests.batch/0/-1",
        "a.b.events.batch/0/1",
        "other.requests.batch/0/1",
        "a.b.requests.nowhere/0/1",
        "a.b.requests.batch/²/1",
        "a.b.requests.two.pools.batch/0/1",
        "a.b.requests.batch/0/1/2",
    ],
)
def test_an_id_of_somebodys_own_is_no_position(text: str) -> None:
    assert parse_position(NAMES, text) is None


@settings(deadline=None, max_examples=100)
@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_two_requests_never_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    first, second = RequestRef(*one), RequestRef(*other)
    assert parse_log_key(log_key(first)) == first
    assert (log_key(first) == log_key(second)) == (first == second)


def test_a_slash_in_a_tenant_is_no_end_of_it() -> None:
    assert log_key(RequestRef("c", "a/b")) != log_key(RequestRef("b/c", "a"))


def test_keys_go_where_java_and_librdkafka_put_them() -> None:
    # From the test suites of Apache Kafka (`Utils.murmur2`) and of zlib.
    assert java_partition(b"21", 1 << 31) == -973932308 & 0x7FFFFFFF
    assert java_partition(b"foobar", 1 << 31) == -790332482 & 0x7FFFFFFF
    assert librdkafka_partition(b"123456789", 1 << 32) == 0xCBF43926
