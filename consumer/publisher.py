"""From the engine to the logs: which deltas are due, and one pipelined append for all of them.

    step:      1        2     3     4        5
    tokens     ab       cd    ef    gh       ij          (of two streams, a character each)
    append     └─ab────────┘  └─cdef──────┘  └─ghij─ …

One append call is under way at a time; what arrives meanwhile coalesces. So a fast log gets every step at
once, a slow one gets fewer and larger deltas, and the engine never waits for either. Requests that nobody
streams wait for their checkpoint (see `Outbox.due_at`).

Exits of an append, per request:

| answer             | then                                                                              |
|--------------------|-----------------------------------------------------------------------------------|
| True               | acknowledged                                                                      |
| False              | somebody else owns the request: dropped silently, counted                         |
| broker unavailable | its fate is unknown: fence anew, read the log, go on behind what stands there     |
| too large          | likewise, and then one by one; whose events are too large fails                   |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from headrace.broker.contract import Append, ConsumerSession
from headrace.broker.errors import BrokerUnavailable, TooLarge
from headrace.broker.events import Event
from headrace.consumer.failures import fenced, result_too_large
from headrace.consumer.inflight import InFlight
from headrace.consumer.outage import Outage
from headrace.consumer.outbox import Checkpoints
from headrace.consumer.ownership import reopen
from headrace.consumer.rest import ends_in_one_call
from headrace.consumer.side_tasks import cancel

REFUSED = "an append was refused"


class Publisher:
    """`flights`: all requests in flight, asked anew each time. `on_change` is told of each one whose outbox
    moved on, or that was taken away. `clock`: monotonic seconds, the one of `InFlight`. `chunks`: the lines
    for its reply topic that belong to events just put on the wire."""

    def __init__(
        self,
        session: ConsumerSession,
        flights: Callable[[], Iterable[InFlight]],
        on_change: Callable[[InFlight], None],
        rules: Checkpoints,
        clock: Callable[[], float],
        outage: Outage,
        chunks: Callable[[InFlight, Sequence[Event]], Sequence[bytes]] = lambda flight, events: (),
    ) -> None:
        self._session = session
        self._flights = flights
        self._on_change = on_change
        self._rules = rules
        self._clock = clock
        self._outage = outage
        self._chunks = chunks
        self._woken = asyncio.Event()
        self._reopening: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None  # of one of these
        self._apart: set[InFlight] = set()  # to be sent alone: one of them is too large

    def wake(self) -> None:
        """Something was added, or became urgent."""
        self._woken.set()

    async def run(self) -> None:
        """Publishes until it is cancelled."""
        try:
            while self._failure is None:
                self._woken.clear()
                due, next_at = self._look()
                if due:
                    await self._publish(self._next_of(due))
                else:
                    await self._sleep(next_at)
            raise self._failure
        finally:
            await cancel(self._reopening)

    def _next_of(self, due: list[InFlight]) -> list[InFlight]:
        if not self._apart:
            return due
        self._apart.intersection_update(self._flights())
        apart = self._apart.intersection(due)
        return [apart.pop()] if apart else due

    def _look(self) -> tuple[list[InFlight], float | None]:
        """The requests with something due, and when the next of the others will be."""
        now = self._clock()
        due: list[InFlight] = []
        next_at: float | None = None
        for flight in self._flights():
            if flight.outbox is None or ends_in_one_call(flight):
                continue
            at = flight.outbox.due_at(self._rules, urgent=_is_urgent(flight))
            if at is None:
                continue
            if at <= now:
                due.append(flight)
            elif next_at is None or at < next_at:
                next_at = at
        return due, next_at

    async def _sleep(self, until: float | None) -> None:
        timeout = None if until is None else max(0.0, until - self._clock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._woken.wait()

    async def _publish(self, due: list[InFlight]) -> None:
        batch = [self._append_of(flight) for flight in due]
        try:
            answers = await self._session.append(batch)
        except BrokerUnavailable as error:
            self._outage.noticed(f"an append of {len(due)} requests", error)
            self._begin_to_reopen(due)
            return
        except TooLarge:
            self._apart.update(due if len(due) > 1 else ())
            self._begin_to_reopen(due, too_large=len(due) == 1)
            return
        finally:
            if len(due) == 1:
                self._apart.discard(due[0])
        for flight, written in zip(due, answers, strict=True):
            self._answered(flight, written)

    def _answered(self, flight: InFlight, written: bool) -> None:
        if written and flight.outbox is not None:
            flight.outbox.acknowledged()
        elif not written:
            flight.disowned(fenced(REFUSED).ending())
        self._on_change(flight)

    def _begin_to_reopen(self, flights: list[InFlight], *, too_large: bool = False) -> None:
        """Each by itself, beside the appends of others: what it has on the wire keeps it out of them."""
        for flight in flights:
            if flight.outbox is not None:
                task = asyncio.create_task(
                    self._reopen(flight, too_large), name=f"re-opening {flight.request_id}"
                )
                self._reopening.add(task)
                task.add_done_callback(self._reopened)

    async def _reopen(self, flight: InFlight, too_large: bool) -> None:
        await reopen(self._session, flight, self._outage)
        if too_large and flight.outbox is not None:
            flight.outbox.discard(flight.epoch)
            flight.fail_finished(result_too_large(), self._clock())
            flight.fail(result_too_large(), self._clock())
        self._on_change(flight)  # at once: whoever has ended is to leave the engine before it says more

    def _reopened(self, task: asyncio.Task[None]) -> None:
        self._reopening.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
        self.wake()

    def _append_of(self, flight: InFlight) -> Append:
        assert flight.outbox is not None
        events = flight.outbox.take()
        return Append(flight.delivery, flight.outbox.epoch, events, self._chunks(flight, events))


def _is_urgent(flight: InFlight) -> bool:
    """Whether its tokens go into the log at once: somebody streams them, or the answer ends."""
    return flight.delivery.message.stream or flight.ending is not None
