"""Who owns a request: at its pull, and again when an append or a settle had an unknown fate.

Then the owner fences itself anew and reads the log: only that tells what stands there. Whatever the answer,
no token is doubled or lost: the outbox goes on behind the last delta that landed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from headrace.broker.contract import ConsumerSession, Opened, OpenOutcome, Settlement
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.consumer import failures
from headrace.consumer.backoff import Backoff
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.inflight import InFlight
from headrace.consumer.outage import Outage
from headrace.consumer.rest import ends_in_one_call
from headrace.consumer.retries import Retries

log = logging.getLogger(__name__)

NOT_OURS = "another consumer wrote into the log meanwhile"


async def first_open(
    session: ConsumerSession, flight: InFlight, retries: Retries, outage: Outage
) -> Opened | None:
    """Opens a delivery that was pulled. None: it is not to be run here, and its ending says why."""
    try:
        opened = await outage.insist(lambda: session.open(flight.delivery), f"opening {flight.request_id}")
    except BrokerRefused:
        raise  # that is no matter of this request
    except BrokerError as error:
        # A log that this version cannot read: another consumer may, and this one goes on.
        log.error("request %s cannot be opened: %s", flight.request_id, error)
        retries.put_off_unread(flight, str(error))
        return None
    if opened.outcome is not OpenOutcome.RUN:
        flight.disowned(not_to_run(opened.outcome))
        return None
    flight.opened(opened)
    return opened


async def reopen(session: ConsumerSession, flight: InFlight, outage: Outage) -> None:
    """Fences anew, as often as it takes, and tells the flight what became of it."""
    try:
        opened = await outage.insist(lambda: session.open(flight.delivery), f"re-opening {flight.request_id}")
    except BrokerRefused:
        raise
    except BrokerError as error:
        # As at its pull. What was decided there stands, where it was never opened.
        log.error("request %s cannot be opened again: %s", flight.request_id, error)
        if flight.outbox is not None:
            flight.disowned(Ending(Exit.RELEASE, reason=str(error)))
        return
    if opened.outcome is not OpenOutcome.RUN:
        flight.disowned(not_to_run(opened.outcome))
        return
    assert opened.state is not None
    if flight.dropped:
        return  # meanwhile it was lost; what comes next belongs to its new delivery
    if flight.outbox is None:
        # It was not ours to run before, now it is: it begins anew, as any delivery does.
        flight.opened(opened)
        flight.overrule(Ending(Exit.RELEASE, reason="it is to be run after all"))
    elif not flight.outbox.reopened(opened.epoch, opened.state, opened.now_ms):
        flight.outbox.discard(opened.epoch)
        flight.overrule(Ending(Exit.RELEASE, reason=NOT_OURS))


async def settle_for_sure(
    session: ConsumerSession, flight: InFlight, build: Callable[[InFlight], Settlement], outage: Outage
) -> bool:
    """Settles, as often as it takes; `build` makes the settlement under the epoch in force. False: somebody
    else owns the request. One whose terminal record landed is acknowledged silently."""
    backoff = Backoff()
    while not flight.dropped:
        try:
            return await session.settle(flight.delivery, flight.epoch, build(flight))
        except BrokerUnavailable as error:
            outage.noticed(f"settling {flight.request_id}", error)
            await backoff.pause()
        await reopen(session, flight, outage)
        if flight.outbox is not None and not ends_in_one_call(flight):
            flight.outbox.discard(flight.epoch)  # all deltas were written; the settlement carries the epoch
    return False


def not_to_run(outcome: OpenOutcome) -> Ending:
    """How a delivery that is not to be run leaves."""
    match outcome:
        case OpenOutcome.ENDED | OpenOutcome.TWIN:
            return Ending(Exit.DONE, reason=outcome.value)
        case OpenOutcome.CONFLICT:
            return failures.CONFLICT.ending()
        case OpenOutcome.LOST:
            return failures.fenced("the lease is gone").ending()
        case OpenOutcome.RUN:
            raise AssertionError("a request to run does not leave")
