"""The last step of a request: it is settled as it ended, or with less, where the broker can never take that.

    its result ─► a failure that says so, without the text ─► without what the log lacks ─► without a line
    to another pool, or later ─┘

Each step down begins with a new fence, since the fate of what was refused is not asked for. So no request is
refused for ever, by one consumer after the other, because of its size.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time

from headrace.broker.errors import BrokerError, BrokerUnavailable, TooLarge
from headrace.consumer import failures
from headrace.consumer.endings import Exit
from headrace.consumer.inflight import InFlight
from headrace.consumer.means import Means
from headrace.consumer.ownership import reopen, settle_for_sure
from headrace.consumer.rest import ends_in_one_call
from headrace.consumer.results import is_of_numbers, result_line, settlement

log = logging.getLogger(__name__)


class Settling:
    def __init__(self, flight: InFlight, means: Means) -> None:
        self._flight, self._means = flight, means
        self._with_text = self._with_line = True

    async def run(self) -> bool:
        """False: somebody else owns the request."""
        for shorten in (self._fail_instead, self._leave_out_the_rest, self._leave_out_the_line):
            try:
                return await self._leave()
            except TooLarge as error:
                log.error("the result of request %s cannot be written: %s", self._flight.request_id, error)
            await self._reopen()
            shorten()
        return await self._leave()

    def _fail_instead(self) -> None:
        self._with_text = False
        self._flight.fail_finished(failures.result_too_large(), self._means.clock())
        self._flight.fail_to_go(failures.too_large_to_go(), self._means.clock())

    def _leave_out_the_rest(self) -> None:
        if self._flight.outbox is not None:
            self._flight.outbox.discard(self._flight.epoch)

    def _leave_out_the_line(self) -> None:
        self._with_line = False

    async def _leave(self) -> bool:
        """For a pool whose queue cannot be had it does not leave, and comes back here later: that is a matter
        of the requests for that pool."""
        try:
            return await self._settle()
        except (BrokerUnavailable, TooLarge):
            raise
        except BrokerError as error:
            if not self._moves():
                raise
            log.error("request %s cannot be passed on: %s", self._flight.request_id, error)
            reason = str(error)
        await self._reopen()
        if self._moves():  # and was not taken away meanwhile
            self._means.retries.put_off_instead(self._flight, reason)
        return await self._settle()

    def _moves(self) -> bool:
        ending = self._flight.ending
        return ending is not None and ending.exit is Exit.MOVE

    async def _settle(self) -> bool:
        line = await self._result_line() if self._with_line else None
        means = self._means
        return await settle_for_sure(
            means.session, self._flight, lambda flight: settlement(flight, line), means.outage
        )

    async def _reopen(self) -> None:
        await reopen(self._means.session, self._flight, self._means.outage)
        if not ends_in_one_call(self._flight):
            self._leave_out_the_rest()  # all of it was written; the settlement carries the epoch

    async def _result_line(self) -> bytes | None:
        """Made once, however often it takes to settle; a long one off the event loop."""
        flight, means, terminal = self._flight, self._means, self._flight.terminal()
        if terminal is None:
            return None
        model, spell = flight.adapter or means.model, means.preparer.spelling(flight.parsed)
        make = functools.partial(
            result_line, flight, terminal, model, int(time.time()), spell, with_text=self._with_text
        )
        return await asyncio.to_thread(make) if is_of_numbers(flight) else make()
