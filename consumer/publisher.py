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
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from headrace.broker.contract import Append, ConsumerSession
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Event
from headrace.consumer.failures import fenced
from headrace.consumer.inflight import InFlight
from headrace.consumer.outage import Outage
from headrace.consumer.outbox import Checkpoints
from headrace.consumer.ownership import reopen
from headrace.consumer.rest import ends_in_one_call

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

    def wake(self) -> None:
        """Something was added, or became urgent."""
        self._woken.set()

    async def run(self) -> None:
        """Publishes until it is cancelled."""
        while True:
            self._woken.clear()
            due, next_at = self._look()
            if due:
                await self._publish(due)
            else:
                await self._sleep(next_at)

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
            await self._reopen(due)
            return
        for flight, written in zip(due, answers, strict=True):
            self._answered(flight, written)

    def _answered(self, flight: InFlight, written: bool) -> None:
        if written and flight.outbox is not None:
            flight.outbox.acknowledged()
        elif not written:
            flight.disowned(fenced(REFUSED).ending())
        self._on_change(flight)

    async def _reopen(self, flights: list[InFlight]) -> None:
        held = [flight for flight in flights if flight.outbox is not None]
        await asyncio.gather(*(reopen(self._session, flight, self._outage) for flight in held))
        for flight in held:
            self._on_change(flight)

    def _append_of(self, flight: InFlight) -> Append:
        assert flight.outbox is not None
        events = flight.outbox.take()
        return Append(flight.delivery, flight.outbox.epoch, events, self._chunks(flight, events))


def _is_urgent(flight: InFlight) -> bool:
    """Whether its tokens go into the log at once: somebody streams them, or the answer ends."""
    return flight.delivery.message.stream or flight.ending is not None
