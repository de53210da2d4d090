"""The story of one request in this consumer, from its pull to its settlement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.message import Delivery, Lane
from headrace.consumer import failures
from headrace.consumer.doom import Doom
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.fair_queue import Ticket
from headrace.consumer.inflight import InFlight, Phase
from headrace.consumer.means import Means
from headrace.consumer.ownership import first_open
from headrace.consumer.preparation import Preparation
from headrace.consumer.rest import is_flushed
from headrace.consumer.settling import Settling
from headrace.consumer.timing import Timing

BYTES_PER_TOKEN = 4  # of a prompt, roughly; put right when the request ends


@dataclass(eq=False)
class Serving:
    """One delivery and its task. It waits until it is admitted: has one of the slots."""

    flight: InFlight
    means: Means
    timing: Timing
    admitted: bool = False
    _hastened: bool = False
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _settling: bool = False

    @classmethod
    def of(cls, delivery: Delivery, means: Means) -> Serving:
        timing = Timing(delivery, means.rules.policy_of(delivery.message.lane))
        return cls(InFlight(delivery, means.clock()), means, timing)

    @property
    def lane(self) -> Lane:
        return self.flight.delivery.message.lane

    def ticket(self) -> Ticket:
        """What the waiting room needs to know."""
        message = self.flight.delivery.message
        size = message.claim.size if message.claim is not None else len(message.body)
        return Ticket(
            tenant=message.tenant,
            size=len(message.body),
            cost=1 + size / BYTES_PER_TOKEN,
            deadline_ms=message.deadline_ms,
            late_at_ms=self.timing.late_at_ms,
        )

    @property
    def cost(self) -> float:
        """Tokens that were computed for it here."""
        prepared = self.flight.prepared
        prompt = prepared.num_prompt_tokens if prepared is not None else 0
        return 1.0 + prompt + self.flight.answers.num_tokens - self.flight.kept

    def moved(self) -> None:
        """Something about the flight changed: a token, an acknowledgement, its ending."""
        self._moved.set()

    def admit(self) -> None:
        """It has a slot now."""
        self.admitted = True
        self._moved.set()

    async def run(self) -> bool:
        """Serves the request to its end. False: somebody else owns it."""
        try:
            await self._begin()
            await self._until(lambda: self.flight.ending is not None)
            self.means.publisher.wake()
            await self._until(lambda: is_flushed(self.flight))
            self._settling = True
            return await Settling(self.flight, self.means).run()
        finally:
            self.timing.stop()

    # --------------------------------------------------------------------------- stopped from outside

    def stop(self, doom: Doom) -> None:
        """Cancelled, expired or called back. One that runs gets to say its last words; one that waits is
        opened out of its turn, since its log gets a terminal record."""
        if self.flight.stop(doom, self.means.clock()):
            self.means.placement.abort(self.flight)
        elif self.flight.ending is not None:
            self._leave_engine()
        else:
            self._hasten()

    def recall(self) -> None:
        """Hand it back, with all tokens that the engine made of it."""
        if self.flight.phase in (Phase.WAITING, Phase.OPENING):
            self.release()
        else:
            self.stop(Doom.RECALLED)

    def release(self) -> None:
        """Hand it back at once; what was received goes into the log first."""
        self.flight.end(Ending(Exit.RELEASE))
        self._leave_engine()

    def lost(self, reason: str) -> None:
        """Somebody else owns it. Not believed while it is being settled: a heartbeat that crosses with the
        settlement finds the delivery gone because we ended it, and the settlement's own answer tells."""
        if self._settling:
            return
        self.flight.disowned(failures.fenced(reason).ending())
        self._leave_engine()

    def _leave_engine(self) -> None:
        self.means.placement.remove(self.flight)
        self.means.room.look_again()
        self.means.publisher.wake()
        self.moved()

    def _hasten(self) -> None:
        self._hastened = True
        self._moved.set()

    # ---------------------------------------------------------------------------------------- waiting

    async def _begin(self) -> None:
        """Up to the engine's door; a request that is not to be run gets its ending on the way."""
        flight, means = self.flight, self.means
        self.timing.arm(means.broker_clock.now_ms(), self._hasten, self._hasten)
        await self._until(lambda: self.admitted or self._hastened or flight.ending is not None)
        if flight.ending is not None:
            return
        flight.phase = Phase.OPENING
        opened = await first_open(means.session, flight, means.retries, means.outage)
        if opened is None:
            return
        means.broker_clock.heard(opened.now_ms)
        self._judge_times(opened.now_ms)
        await self._until(lambda: self.admitted or flight.ending is not None)
        await Preparation(flight, means, opened, self._until).run()

    def _judge_times(self, now_ms: int) -> None:
        """By the broker's clock, which has the last word."""
        if self.flight.past.has_begun:
            self.timing.begun()
        if self.timing.expired(now_ms):
            self.stop(Doom.EXPIRED)
        elif self.timing.overdue(now_ms):
            self._refuse_overdue()
        else:
            self.timing.arm(now_ms, lambda: self.stop(Doom.EXPIRED), self._lose_patience)

    def _lose_patience(self) -> None:
        if not self.admitted:
            self._refuse_overdue()
            self._leave_engine()

    def _refuse_overdue(self) -> None:
        timing = self.timing
        assert timing.limit_ms is not None
        waited_ms = round(self.means.broker_clock.now_ms()) - timing.published_ms
        self.flight.fail(failures.overdue(self.lane, waited_ms, timing.limit_ms))

    # ---------------------------------------------------------------------------------------- ending

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()
