"""Events as bytes: what is written is read back, and what is no event is said to be none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.errors import BrokerError
from headrace.broker.events import (
    Delta,
    Event,
    Failed,
    Fence,
    Finished,
    Handed,
    Moved,
    Started,
    Timings,
    TokenLogprobs,
    Usage,
)
from headrace.broker.wire import decode_event, encode_event
from headrace.v1 import events_pb2 as pb

# Protobuf strings are UTF-8, so text with half a surrogate pair cannot be an event's.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
UINT64 = st.integers(0, 2**64 - 1)
UINT32 = st.integers(0, 2**32 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**32 - 1)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS)
TIMINGS = st.builds(Timings, INT64, INT64, INT64)
NUMBERS = st.floats(allow_nan=False)
LOGPROBS = st.builds(
    TokenLogprobs, UINT32, NUMBERS, st.lists(st.tuples(UINT32, NUMBERS), max_size=3).map(tuple)
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Started,
        epoch=UINT64,
        consumer=TEXTS,
        delivery=TEXTS,
        seed=UINT64,
        body_hash=st.binary(),
        fingerprint=TEXTS,
        kept=UINT32,
        at_ms=INT64,
        deaths=UINT32,
        lone_deaths=UINT32,
        alone=st.booleans(),
    ),
    st.builds(
        Delta,
        epoch=UINT64,
        seq=UINT64,
        token_ids=st.lists(UINT32).map(tuple),
        text=TEXTS,
        choice=UINT32,
        logprobs=st.lists(LOGPROBS, max_size=3).map(tuple),
        prompt_logprobs=st.lists(LOGPROBS, max_size=3).map(tuple),
    ),
    st.builds(
        Finished,
        epoch=UINT64,
        reason=TEXTS,
        usage=USAGES,
        timings=TIMINGS,
        reasons=st.lists(TEXTS, max_size=2).map(tuple),
        embeddings=st.lists(st.binary(max_size=8), max_size=2).map(tuple),
    ),
    st.builds(
        Failed,
        epoch=UINT64,
        code=TEXTS,
        message=TEXTS,
        status=UINT32,
        param=TEXTS,
        usage=USAGES,
        timings=TIMINGS,
    ),
    st.builds(Handed, epoch=UINT64, reason=TEXTS),
    st.builds(Moved, epoch=UINT64, pool=TEXTS, log=TEXTS),
    st.builds(Fence, epoch=UINT64),
)


@settings(deadline=None, max_examples=300)
@given(EVENTS, TEXTS)
def test_an_event_is_read_back_as_it_was_written(event: Event, request_id: str) -> None:
    assert decode_event(encode_event(event, request_id)) == event


@pytest.mark.parametrize(
    "event",
    [
        Started(0, "", "", 0, b"", ""),
        Delta(0, 0, (), ""),
        Finished(0, ""),
        Failed(0, "", ""),
        Handed(0),
        Moved(0, "", ""),
        Fence(0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_of_nothing_but_zeros_keeps_its_kind(event: Event) -> None:
    assert decode_event(encode_event(event)) == event


def test_the_request_id_stands_in_the_bytes_for_logs_that_share_a_partition() -> None:
    assert pb.Event.FromString(encode_event(Fence(3), "r-1")).request_id == "r-1"


def test_bytes_that_are_no_event_are_an_error_with_a_sentence() -> None:
    with pytest.raises(BrokerError, match="no event"):
        decode_event(b"\xff\xff\xff not protobuf")


def test_an_event_of_an_unknown_kind_is_an_error_with_a_sentence() -> None:
    newer = pb.Event(epoch=1).SerializeToString() + b"\xa2\x06\x00"  # field 100, of a version to come
    with pytest.raises(BrokerError, match="newer version"):
        decode_event(newer)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_random_bytes_are_an_event_or_a_broker_error_and_never_anything_else(data: bytes) -> None:
    try:
        event = decode_event(data)
    except BrokerError:
        return
    assert decode_event(encode_event(event)) == event


def test_an_unknown_field_of_a_newer_writer_does_no_harm() -> None:
    event = Delta(1, 2, (3,), "a")
    assert decode_event(encode_event(event) + b"\xa2\x06\x00") == event
