"""A lane's queue policy: how it is written, and how long a message may wait under it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.message import Lane, Message
from headrace.broker.queue_policy import QueuePolicy, parse_policy

TIMES = st.none() | st.integers(0, 10**9)


def test_all_settings_of_a_lane_on_one_line() -> None:
    lane, policy = parse_policy("batch:size=100000,timeout=3600,on-timeout=delay,may-shorten=no")
    assert lane is Lane.BATCH
    assert policy == QueuePolicy(100_000, 3_600_000, "delay", may_shorten=False)


@pytest.mark.parametrize("text", ["standard", "standard:", "standard:,"])
def test_what_is_not_set_lets_everything_wait_for_ever(text: str) -> None:
    assert parse_policy(text) == (Lane.STANDARD, QueuePolicy(None, None, "reject", may_shorten=True))


def test_times_are_seconds_and_may_be_fractions() -> None:
    assert parse_policy("batch: timeout = 0.25 ")[1].timeout_ms == 250
    assert parse_policy("batch:timeout=0")[1].timeout_ms == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no lane"),
        ("slow:size=1", "interactive, standard, batch, background"),
        ("batch:size=-1", "size=-1 is no number"),
        ("batch:size=many", "size=many is no number"),
        ("batch:size=nan", "no number"),
        ("batch:size=inf", "no number"),
        ("batch:timeout=", "timeout= is no number"),
        ("batch:on-timeout=drop", "use reject or delay"),
        ("batch:may-shorten=maybe", "use yes or no"),
        ("batch:length=3", "use size, timeout, on-timeout or may-shorten"),
        ("batch:" + "x" * 10_000, "no setting of a lane"),
    ],
)
def test_what_is_wrong_is_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        parse_policy(text)
    assert len(str(refused.value)) < 200


@given(lane_ms=TIMES, own_ms=TIMES, may_shorten=st.booleans())
def test_a_request_may_shorten_its_wait_where_the_lane_lets_it_and_never_lengthen_it(
    lane_ms: int | None, own_ms: int | None, may_shorten: bool
) -> None:
    policy = QueuePolicy(timeout_ms=lane_ms, may_shorten=may_shorten)
    allowed = policy.timeout_of(Message(b"", queue_timeout_ms=own_ms))
    if own_ms is None or not may_shorten:
        assert allowed == lane_ms
    else:
        assert allowed == (own_ms if lane_ms is None else min(own_ms, lane_ms))
