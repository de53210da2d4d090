"""Pauses of requests that are retried."""

from __future__ import annotations

from headrace.broker.contract import Opened, OpenOutcome
from headrace.broker.events import Event, Handed, Started
from headrace.broker.fold import fold
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.inflight import InFlight
from headrace.consumer.retries import Retries, attempts
from headrace.consumer.settings import RetrySettings
from tests.unit.consumer.fakes import NOW_MS, delivery

SETTINGS = RetrySettings(first_s=1, longest_s=8)


def longest(low: float, high: float) -> float:
    return high


def retries() -> Retries:
    clock = BrokerClock(lambda: 100.0)
    clock.heard(NOW_MS)
    return Retries(SETTINGS, clock, jitter=longest)


def opened(*log: Event, deadline_ms: int | None = None) -> InFlight:
    flight = InFlight(delivery(deadline_ms=deadline_ms), 0.0)
    flight.opened(Opened(OpenOutcome.RUN, 9, fold(log), False, NOW_MS))
    return flight


def put_off(flight: InFlight) -> Ending:
    retries().put_off(flight, "the store is away")
    assert flight.ending is not None
    return flight.ending


def test_pauses_double_up_to_the_longest_and_the_count_is_in_the_log() -> None:
    log: list[Event] = []
    pauses: list[int] = []
    for epoch in range(1, 7):
        ending = put_off(opened(*log))
        assert ending.exit is Exit.RETRY
        assert ending.reason == f"retry {epoch}: the store is away"
        pauses.append(ending.delay_ms)
        log.append(Handed(epoch, ending.reason))
    assert pauses == [1000, 2000, 4000, 8000, 8000, 8000]


def test_the_count_begins_anew_once_the_request_has_begun() -> None:
    begun = Started(2, "c", "d", 1, b"", "m")
    assert put_off(opened(Handed(1, "retry 5: away"), begun)).delay_ms == 1000


def test_a_retry_is_back_when_its_deadline_passes() -> None:
    assert put_off(opened(deadline_ms=NOW_MS + 300)).delay_ms == 300
    assert put_off(opened(deadline_ms=NOW_MS - 300)).delay_ms == 0


def test_one_that_nobody_can_count_has_long_pauses() -> None:
    flight = InFlight(delivery(), 0.0)
    retries().put_off_unread(flight, "an event of an unknown kind")
    assert flight.ending is not None
    assert (flight.ending.exit, flight.ending.delay_ms) == (Exit.RETRY, 8000)


def test_other_reasons_for_handing_back_count_nothing() -> None:
    assert attempts(None) == 0
    assert attempts(Handed(1, "handed back")) == 0
    assert attempts(Handed(1, "retry x: no number")) == 0
    assert attempts(Handed(1, "retry 12: away")) == 12
