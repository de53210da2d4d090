"""Messages to stream fields and back; and when sweeps are due."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.headers import Unreadable, is_taken
from headrace.broker.message import Claim, Lane, Message, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.codec import Entry, decode, encode, queue_of
from headrace.broker.redis_streams.sweep import DUE, SweepPlan

NAMES = Names()
POOL = "large"
ENTRY = Entry(NAMES.requests(Lane.BATCH, POOL), "1790000000000-3")
TAKEN = ["body", "lane", "deadline", "reply-to", "stream", "headrace-claim", "headrace-position"]
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


claims = st.builds(
    Claim,
    address=words.filter(bool),
    body_hash=st.binary(min_size=32, max_size=32),
    size=st.integers(0, 10**15 - 1),
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    claim = draw(st.none() | claims)
    return Message(
        body=draw(st.binary(max_size=50)) if claim is None else b"",
        request_id=draw(st.none() | words.filter(bool)),
        lane=Lane.BATCH,
        tenant=draw(words),
        content_type=draw(st.sampled_from(["application/json", "application/x-protobuf", "", "é"])),
        deadline_ms=draw(st.none() | st.integers(0, 10**15 - 1)),
        reply_to=draw(st.none() | st.just("headrace.reply.mine")),
        stream=draw(st.booleans()),
        headers=draw(st.dictionaries(words.filter(lambda name: not is_taken(name)), words, max_size=4)),
        pool=POOL,
        queue_timeout_ms=draw(st.none() | st.integers(0, 10**15 - 1)),
        claim=claim,
    )


@settings(deadline=None, max_examples=150)
@given(messages())
def test_what_is_published_is_what_is_delivered(message: Message) -> None:
    delivery = decode(ENTRY, encode(message, NAMES), Lane.BATCH, POOL, NAMES)
    assert delivery.message == message
    assert delivery.message.body_hash == message.body_hash
    assert delivery.ref == RequestRef(message.request_id or ENTRY.place, message.tenant)
    assert (delivery.position, delivery.published_ms) == (ENTRY.place, 1790000000000)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=12) | st.sampled_from([t.encode() for t in TAKEN]), st.binary(max_size=12)
        ),
        max_size=8,
    )
)
def test_any_entry_is_a_message_or_unreadable(fields: list[tuple[bytes, bytes]]) -> None:
    flat = [part for pair in fields for part in pair]
    try:
        delivery = decode(ENTRY, flat, Lane.BATCH, POOL, NAMES)
    except Unreadable:
        return
    assert dict(fields)[b"body"] == delivery.message.body


def test_a_sweep_is_due_at_once_and_then_every_quarter_lease_with_jitter() -> None:
    plan = SweepPlan(lanes=2, lease_ms=4_000)
    assert plan.cursors(0.0) == ["0-0", "0-0"]
    plan.advance(["0-0", "0-0"], 0.0)
    assert plan.cursors(0.0) == ["", ""]
    assert 0.75 <= plan.next_due(0.0, [0, 1]) <= 1.25
    assert plan.cursors(1.3) == ["0-0", "0-0"]


def test_an_unfinished_sweep_goes_on_at_once_where_it_stopped() -> None:
    plan = SweepPlan(lanes=2, lease_ms=4_000)
    plan.advance(["17-3", "0-0"], 0.0)
    assert plan.cursors(0.0) == ["17-3", ""]
    assert plan.next_due(0.0, [0, 1]) == 0.0
    plan.advance(["0-0", ""], 0.1)
    assert plan.cursors(0.1) == ["", ""]


def test_a_sweep_that_could_not_begin_stays_due_for_its_lane_alone() -> None:
    plan = SweepPlan(lanes=2, lease_ms=4_000)
    plan.advance(["0-0", DUE], 0.0)
    assert plan.cursors(0.0) == ["", "0-0"]
    assert plan.next_due(0.0, [1]) == 0.0
    assert plan.next_due(0.0, [0]) >= 0.75
    assert plan.next_due(0.0, []) == float("inf")


def test_a_queue_is_known_by_the_name_of_its_stream_and_by_no_other_key() -> None:
    for lane in Lane:
        for pool in ("", "large", "a_b-1", "batch"):
            assert queue_of(NAMES.requests(lane, pool), NAMES) == (lane, pool)
    for key in (
        "headrace.requests.",
        "headrace.requests.fast",
        "headrace.results",
        "batch",
        "x.batch",
        "headrace.requests.a.b.batch",
        "headrace.requests..batch",
        "other.requests.batch",
    ):
        assert queue_of(key, NAMES) is None
