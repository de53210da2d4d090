"""What a log lacks when its request ends, and nothing can be appended any more."""

from __future__ import annotations

from headrace.broker.contract import Opened, OpenOutcome
from headrace.broker.events import Started
from headrace.broker.fold import Fold
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.inflight import InFlight
from headrace.consumer.rest import give_up_unwritten, is_flushed
from tests.unit.consumer.fakes import NOW_MS, delivery

PUT_OFF = Ending(Exit.RETRY, reason="busy")


def ended(*, lacks: bool) -> InFlight:
    flight = InFlight(delivery(), 0.0)
    flight.opened(Opened(OpenOutcome.RUN, 1, Fold(), False, NOW_MS))
    if lacks:
        flight.mark(Started(1, "c", "d", 0, flight.body_hash, ""), 0.0)
    flight.end(PUT_OFF)
    return flight


def test_an_end_whose_log_is_whole_stands() -> None:
    flight = ended(lacks=False)
    give_up_unwritten(flight)
    assert flight.ending == PUT_OFF


def test_an_end_that_would_leave_a_gap_is_left_to_another_owner() -> None:
    flight = ended(lacks=True)
    assert not is_flushed(flight)
    give_up_unwritten(flight)
    assert is_flushed(flight)
    assert flight.ending == Ending(Exit.RELEASE)
