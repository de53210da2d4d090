"""The rest of a request's log: what it lacks yet when the request ends.

    ends with a terminal record ──► the settlement takes the rest along, in one call
    leaves in any other way     ──► the rest is appended first, then it is settled

Chunks for a reply topic go with an append, so a request that has them goes the second way, too.
"""

from __future__ import annotations

from headrace.broker.events import Event
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.inflight import InFlight


def ends_in_one_call(flight: InFlight) -> bool:
    """Whether its end takes along what its log lacks."""
    ending, message = flight.ending, flight.delivery.message
    has_end = ending is not None and ending.exit is Exit.DONE and ending.terminal is not None
    return has_end and not (message.stream and message.reply_to)


def is_flushed(flight: InFlight) -> bool:
    """Nothing of it is left to append before it is settled."""
    if flight.outbox is None:
        return True
    return not flight.outbox.on_wire if ends_in_one_call(flight) else flight.outbox.empty


def take_rest(flight: InFlight) -> tuple[Event, ...]:
    """What its log lacks, for the settlement to take along."""
    return flight.outbox.take() if flight.outbox is not None and ends_in_one_call(flight) else ()


def give_up_unwritten(flight: InFlight) -> None:
    """Nothing can be appended any more: an end that would leave a gap in the log is another owner's."""
    if flight.outbox is not None and not is_flushed(flight):
        flight.outbox.discard(flight.outbox.epoch)
        flight.overrule(Ending(Exit.RELEASE))
