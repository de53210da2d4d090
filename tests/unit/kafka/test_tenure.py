"""A tenure: what comes next, what a delivery is, what is committed. No broker is needed for any of it."""

from __future__ import annotations

import hashlib

import pytest

from headrace.broker.contract import OpenOutcome
from headrace.broker.events import Delta, Finished, Moved, Started
from headrace.broker.kafka import commits
from headrace.broker.kafka.claims import claim_of
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.departures import Departure
from headrace.broker.kafka.epochs import PartitionLogs
from headrace.broker.kafka.event_records import Closing
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.tenure import HELD_AHEAD, Tenure
from headrace.broker.message import JSON, Delivery
from headrace.broker.names import Names
from tests.unit.kafka.records import TOPICS, request

EPOCH = 5
BODY_HASH = hashlib.sha256(JSON.encode() + b"\0body").digest()


def tenure_of(committed: Committed | None = None, *ids: str) -> Tenure:
    """With a record for each id, from the base on."""
    held = committed or Committed()
    logs = PartitionLogs()
    logs.fence(EPOCH, 0)
    made = Tenure(TOPICS, 0, Names("x"), EPOCH, held, logs, 0, "member")
    made.fetched(request(held.base + i, request_id) for i, request_id in enumerate(ids))
    return made


def take_all(tenure: Tenure) -> list[Delivery]:
    taken = []
    while tenure.oldest_ms() is not None:
        taken.append(tenure.take())
    return taken


def began(tenure: Tenure, delivery: Delivery, body_hash: bytes = BODY_HASH) -> None:
    """As found in the log: this delivery began its request under a former owner."""
    started = Started(EPOCH, "c", delivery.position, 1, body_hash, "model")
    tenure.logs.append(log_key(delivery.ref), started, 10)


def end(tenure: Tenure, delivery: Delivery) -> None:
    closing = Closing(claim_of(delivery).offset, b"line", None)
    tenure.logs.append(log_key(delivery.ref), Finished(EPOCH, "stop"), 11, closing)


def complete(tenure: Tenure, delivery: Delivery) -> None:
    tenure.finish([claim_of(delivery).offset])
    tenure.settled(delivery)


# ------------------------------------------------------------------------------------------- fetching


def test_records_are_taken_in_order_and_those_finished_before_are_passed_over() -> None:
    tenure = tenure_of(Committed(3, frozenset({4, 6})), "a", "b", "c", "d", "e")
    assert [delivery.ref.request_id for delivery in take_all(tenure)] == ["a", "c", "e"]
    assert tenure.commit() == Committed(3, frozenset({4, 6}), EPOCH)


def test_what_is_fetched_again_is_not_taken_again() -> None:
    tenure = tenure_of(None, "a", "b")
    tenure.fetched([request(0, "a"), request(1, "b"), request(2, "c")])
    assert [delivery.ref.request_id for delivery in take_all(tenure)] == ["a", "b", "c"]
    assert tenure.buffer.num_bytes == 0


def test_what_is_given_back_comes_first() -> None:
    tenure = tenure_of(None, "a", "b", "c")
    first, second = tenure.take(), tenure.take()
    tenure.give_back(claim_of(second))
    tenure.give_back(claim_of(first))
    assert not tenure.holds(first)
    assert [delivery.ref.request_id for delivery in take_all(tenure)] == ["a", "b", "c"]


def test_what_is_no_message_is_taken_apart_and_holds_nobody_up() -> None:
    tenure = tenure_of()
    bad = {"deadline": b"tomorrow"}
    tenure.fetched([request(0, "a"), request(1, "b", **bad), request(2, None, **bad), request(3, "c")])
    assert tenure.take_bad() == []
    assert tenure.take().ref.request_id == "a"
    assert tenure.oldest_ms() is None
    assert [found.record.offset for found in tenure.take_bad()] == [1, 2]
    assert tenure.take().ref.request_id == "c"
    tenure.finish([1, 2])
    assert tenure.commit() == Committed(0, frozenset({1, 2}), EPOCH)


def test_a_full_window_is_told_from_an_end_and_names_who_blocks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "WINDOW", 3)
    tenure = tenure_of(None, "a", "b", "c", "d")
    first, *others = take_all(tenure)
    assert len(others) == 2
    assert tenure.blocking() is first
    claim_of(first).settling = True
    assert tenure.blocking() is None, "it is just ending"
    complete(tenure, first)
    assert tenure.blocking() is None
    assert tenure.take().ref.request_id == "d"


def test_it_is_behind_until_what_was_published_is_fetched() -> None:
    tenure = tenure_of(None, "a")
    tenure.known_end = 2
    assert tenure.behind
    tenure.fetched([request(1, "b")])
    assert not tenure.behind


# -------------------------------------------------------------------------------------------- judging


def test_a_new_request_is_run_and_its_copies_are_twins_while_it_runs() -> None:
    tenure = tenure_of(None, "r", "r")
    first, copy = take_all(tenure)
    assert tenure.judge(first) is OpenOutcome.RUN
    tenure.start(first, EPOCH)
    assert tenure.judge(first) is OpenOutcome.RUN
    assert tenure.judge(copy) is OpenOutcome.TWIN
    tenure.end_run(first)
    complete(tenure, first)
    assert tenure.judge(copy) is OpenOutcome.RUN, "nobody ended it"


def test_another_body_under_the_id_is_a_conflict_also_when_the_first_has_ended() -> None:
    tenure = tenure_of()
    tenure.fetched([request(0, "r"), request(1, "r", b"other")])
    first, other = take_all(tenure)
    tenure.start(first, EPOCH)
    assert tenure.judge(other) is OpenOutcome.CONFLICT
    began(tenure, first)
    end(tenure, first)
    complete(tenure, first)
    assert tenure.judge(other) is OpenOutcome.CONFLICT


def test_the_delivery_that_began_a_request_goes_on_and_a_copy_waits_for_it() -> None:
    tenure = tenure_of(None, "r", "r")
    first, copy = take_all(tenure)
    began(tenure, first)
    assert tenure.judge(copy) is OpenOutcome.TWIN, "the other one comes again"
    assert tenure.judge(first) is OpenOutcome.RUN
    complete(tenure, first)
    assert tenure.judge(copy) is OpenOutcome.RUN, "it is gone for good"


def test_an_ended_request_has_ended_for_all_its_copies_long_after() -> None:
    tenure = tenure_of(None, "r", "r")
    first, copy = take_all(tenure)
    began(tenure, first)
    end(tenure, first)
    assert tenure.judge(first) is OpenOutcome.ENDED
    complete(tenure, copy)
    assert log_key(first.ref) in tenure.logs.logs, "its line is still to be emitted"
    complete(tenure, first)
    assert log_key(first.ref) not in tenure.logs.logs
    tenure.fetched([request(2, "r")])
    assert tenure.judge(tenure.take()) is OpenOutcome.ENDED


def test_a_request_that_moved_is_elsewhere_until_a_record_brings_it_back() -> None:
    tenure = tenure_of()
    back = request(2, "r", headrace_moves=b"2", headrace_position=b"x.requests.standard/0/0")
    tenure.fetched([request(0, "r"), request(1, "r"), back])
    first, copy, returned = take_all(tenure)
    moved = Moved(EPOCH, "large", "large.standard/0")
    tenure.logs.append(log_key(first.ref), moved, 10, Departure(0, 1, BODY_HASH))
    assert tenure.moved_away(first), "its owner may have died before it was handed over"
    assert not tenure.moved_away(copy)
    assert tenure.judge(copy) is OpenOutcome.TWIN
    complete(tenure, first)
    assert tenure.judge(copy) is OpenOutcome.TWIN
    assert not tenure.moved_away(returned)
    assert tenure.judge(returned) is OpenOutcome.RUN


# ---------------------------------------------------------------------------------------- restoring


def test_after_a_restore_only_what_is_still_needed_is_kept() -> None:
    tenure = tenure_of(Committed(2, frozenset({3})), "open", "ended and finished", "ended and not finished")
    for offset, name in enumerate(["before", "open", "ended and finished", "ended and not finished"], 1):
        key = f"/{name}"
        tenure.logs.append(key, Started(EPOCH, "c", "p", 1, BODY_HASH, "model"), 10)
        if name != "open":
            tenure.logs.append(key, Finished(EPOCH, "stop"), 11, Closing(offset, b"line", None))
    tenure.tidy()
    assert set(tenure.logs.logs) == {"/open", "/ended and not finished"}
    assert all(key in tenure.logs.ended for key in ("/before", "/ended and finished"))


def test_after_a_restore_a_request_that_came_back_has_what_it_made_here() -> None:
    """A consumer of its model had begun it; the record with which it had gone away was finished long ago."""
    tenure = tenure_of(Committed(1), "r")
    key, departure = "/r", Departure(0, 1, BODY_HASH)
    back = Started(EPOCH, "c", "x.requests.standard/0/1", 1, BODY_HASH, "model")
    tenure.logs.append(key, Moved(EPOCH, "large", "large.standard/0"), 10, departure)
    tenure.logs.append(key, back, 11)
    tenure.logs.append(key, Delta(EPOCH, 0, (7,), "a"), 12)
    tenure.tidy()
    fold = tenure.logs.logs[key].fold
    assert (fold.token_ids, fold.next_seq) == ([7], 1)
    assert tenure.logs.departure(key) == departure, "other records of it are still twins"


def test_redelivered_is_what_a_former_owner_may_have_held() -> None:
    """Behind what it had finished, as far as its window may have reached, and it was there in its time."""
    beyond = Committed(10, frozenset({12}))
    far = 12 + HELD_AHEAD
    for epoch, end, offset, expected in [
        (2, 5_000, 10, True),
        (2, 5_000, far - 1, True),
        (2, 5_000, far, False),
        (2, 11, 10, True),
        (2, 11, 11, False),
        (1, 5_000, 10, False),
    ]:
        tenure = Tenure(TOPICS, 0, Names("x"), epoch, beyond, PartitionLogs(), end, "member")
        tenure.fetched([request(offset, "r")])
        assert tenure.take().redelivered is expected, (epoch, end, offset)


def test_redelivered_is_what_began_before_or_came_by_way_of_a_delay() -> None:
    tenure = tenure_of()
    tenure.logs.append("/a", Started(EPOCH, "c", "p", 1, BODY_HASH, "model"), 10)
    forwarded = {"headrace_position": b"x.requests.standard/0/0"}
    tenure.fetched([request(0, "a"), request(1, "b"), request(2, "c", **forwarded)])
    assert [delivery.redelivered for delivery in take_all(tenure)] == [True, False, True]
