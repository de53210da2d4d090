"""The state of the control topic: records in, state out; compaction may drop what was overwritten."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.contract import Serves
from headrace.broker.kafka.clock import BrokerClock
from headrace.broker.kafka.control import (
    Cancellations,
    ControlState,
    Report,
    decode_report,
    encode_report,
)
from headrace.broker.kafka.places import log_key
from headrace.broker.message import Lane, RequestRef

REPORT = Report("me", "gpu", (Lane.BATCH, Lane.STANDARD), 30_000, {Lane.BATCH: 3}, Serves(("m", "n"), 8), 77)
REF = RequestRef("r/1", "a/b")


def test_a_cancel_mark_tells_whom_it_hits_and_when() -> None:
    state = ControlState()
    assert state.read(f"cancel/{log_key(REF)}", b"{}", 5) == REF
    assert state.marks == {log_key(REF): 5}
    assert state.read(f"cancel/{log_key(REF)}", None, 6) is None
    assert not state.marks


def test_a_report_is_read_back_with_the_time_of_its_record() -> None:
    assert decode_report("me", encode_report(REPORT), 77) == REPORT


@pytest.mark.parametrize("value", [b"", b"nonsense", b"[]", b"{}", b'{"lanes": ["x"]}', b"\xff", b"null"])
def test_bytes_that_are_no_report_end_the_old_one_and_disturb_nobody(value: bytes) -> None:
    state = ControlState(reports={"me": REPORT})
    state.read("consumer/me", value, 1)
    assert not state.reports


def test_unknown_keys_are_passed_over() -> None:
    state = ControlState()
    for key in ("", "cancel", "discarded/x", "discarded/²", "newer/thing", "paused"):
        assert state.read(key, b"{}", 1) is None or key == "cancel"
    assert not state.discarded
    assert not state.reports


keys = st.sampled_from(["cancel//r", "cancel/t/r", "paused/.batch", "discarded/4", "consumer/me"])
records = st.lists(st.tuples(keys, st.sampled_from([None, encode_report(REPORT)])), max_size=12)


@settings(deadline=None, max_examples=100)
@given(records)
def test_compaction_changes_nothing(entries: list[tuple[str, bytes | None]]) -> None:
    def read(kept: list[tuple[int, str, bytes | None]]) -> ControlState:
        state = ControlState()
        for at, key, value in kept:
            state.read(key, value, at)
        return state

    stamped = [(at, key, value) for at, (key, value) in enumerate(entries)]
    last = {key: at for at, key, _ in stamped}
    compacted = [(at, key, value) for at, key, value in stamped if last[key] == at]
    assert read(stamped) == read(compacted)
    assert list(read(stamped).marks) == list(read(compacted).marks)


def test_marks_whose_time_is_over_are_named_oldest_first_and_not_more_than_asked_for() -> None:
    state = ControlState()
    for at in range(5):
        state.read(f"cancel//r{at}", b"{}", at)
    state.read("cancel//r0", b"{}", 100)
    assert state.expired(now_ms=13, log_ms=10, limit=9) == ["cancel//r1", "cancel//r2"]
    assert state.expired(now_ms=1000, log_ms=10, limit=2) == ["cancel//r1", "cancel//r2"]


def test_a_consumer_that_vanished_long_ago_is_named_too() -> None:
    state = ControlState(reports={"me": REPORT})
    day = 24 * 60 * 60 * 1000
    assert state.expired(77 + day, 10, 9) == []
    assert state.expired(78 + day, 10, 9) == ["consumer/me"]


async def test_cancellations_come_in_order_and_end_when_closed() -> None:
    listener = Cancellations()
    refs = [RequestRef(str(i)) for i in range(3)]
    for ref in refs:
        listener.put(ref)
    assert [await anext(listener) for _ in refs] == refs
    waiting = asyncio.ensure_future(anext(listener))
    await asyncio.sleep(0)
    listener.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


def test_the_brokers_clock_is_ours_until_it_cannot_be() -> None:
    clock = BrokerClock()
    assert clock.skew_ms == 0
    clock.observe(100, 103, 108)
    assert clock.skew_ms == 0
    clock.observe(200, 1_203, 208)
    assert 995 <= clock.skew_ms <= 1_004
    clock.observe(300, 250, 310)
    assert -60 <= clock.skew_ms <= -49
