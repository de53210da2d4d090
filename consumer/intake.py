"""From the queue into the slots: pulls a window of deliveries, and lets in who is next.

session ──pull──► waiting room ──a slot is free──► admitted … left
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from headrace.broker.contract import ConsumerSession
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.message import Delivery, Lane
from headrace.consumer.backoff import Backoff
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.fair_queue import Ticket
from headrace.consumer.neighbours import Neighbours
from headrace.consumer.outage import Outage
from headrace.consumer.serving import Serving
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.variety import Variety
from headrace.consumer.waiting_room import WaitingRoom
from headrace.consumer.window import Ask, Window, reserve_for

PULL_WAIT_MS = 500
FULL_WAIT_MS = 50
LOOK_S = 1.0


def window_of(settings: ConsumerSettings, slots: int) -> Window:
    wanted = settings.window.interactive_reserve
    reserve = reserve_for(slots) if wanted is None else wanted
    return Window(
        slots=slots,
        room=(settings.window.times - 1) * slots,
        reserve=reserve if Lane.INTERACTIVE in settings.lanes else 0,
        room_bytes=settings.window.max_bytes,
    )


def room_of(settings: ConsumerSettings) -> WaitingRoom:
    order = settings.order
    return WaitingRoom(
        settings.lanes, weights=order.tenant_weights, patience=order.patience, lead=order.lead_tokens
    )


class Intake:
    """While everything is full, only interactive work is pulled. A pull that waits for it cannot be told that
    a slot became free, so it waits no longer than none did, and for `FULL_WAIT_MS` at most. While slots come
    and go faster than `poll_s`, it looks that often, and does not wait. `clock`: monotonic seconds."""

    def __init__(
        self,
        session: ConsumerSession,
        window: Window,
        room: WaitingRoom,
        neighbours: Neighbours,
        broker_clock: BrokerClock,
        outage: Outage,
        *,
        poll_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._window = window
        self._room = room
        self._neighbours = neighbours
        self._broker_clock = broker_clock
        self._outage = outage
        self._poll_s = poll_s
        self._clock = clock
        self._tickets: dict[Serving, Ticket] = {}  # of all that are held
        self._waiting: dict[Ticket, Serving] = {}
        self._changed = asyncio.Event()
        self._full = asyncio.Event()
        self._closed = False
        self._left_at = clock()  # the last one
        self._variety = Variety(window.slots + window.room)

    @property
    def waiting(self) -> list[Serving]:
        return list(self._waiting.values())

    # ---------------------------------------------------------------------------------------- pulling

    async def run(self, take: Callable[[Delivery], Serving]) -> None:
        """Pulls until it is closed. `take` begins to serve a delivery."""
        backoff = Backoff()
        while (ask := await self._worth_asking()) is not None:
            try:
                deliveries = await self._session.pull(
                    ask.limit, self._patience_ms(ask), reserved=ask.reserved
                )
            except BrokerUnavailable as error:
                self._outage.noticed("a pull", error)
                await backoff.pause()
                continue
            backoff = Backoff()
            self._neighbours.pulled(len(deliveries), of=ask.shared)
            for delivery in deliveries:
                self._enter(take(delivery))
            self._admit()

    def close(self) -> None:
        """No more pulls; one that is under way still brings what it brings."""
        self._closed = True
        self._changed.set()

    async def _worth_asking(self) -> Ask | None:
        """Returns as soon as there is room, or it is time to look for interactive work; None: closed."""
        poll_at = self._clock() + self._poll_s
        while not self._closed:
            ask = self._ask()
            wait_s = max(0.0, min(poll_at, self._left_at + self._poll_s) - self._clock())
            if ask.shared or (ask.reserved and not wait_s):
                return ask
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s if ask.reserved else None):
                    await self._changed.wait()
        return None

    def _patience_ms(self, ask: Ask) -> int:
        if ask.shared:
            return PULL_WAIT_MS
        return min(FULL_WAIT_MS, int((self._clock() - self._left_at) * 1000))

    def _ask(self) -> Ask:
        return self._window.ask(
            held=len(self._tickets),
            waiting=len(self._waiting),
            waiting_bytes=self._room.size,
            room=self._neighbours.room,
            alike=not self._variety.matters,
        )

    async def watch_backlog(self) -> None:
        """Decides how much may wait here, as long as all slots are taken; until it is cancelled."""
        while True:
            await self._full.wait()
            await self._neighbours.look()
            for serving in self.waiting:
                if serving.lane in self._neighbours.paused:
                    serving.recall()
            self._changed.set()
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------------------------------ coming, going

    def _enter(self, serving: Serving) -> None:
        ticket = serving.ticket()
        self._tickets[serving], self._waiting[ticket] = ticket, serving
        self._room.add(ticket, serving.lane)
        self._variety.arrived(ticket, serving.lane, self._broker_clock.now_ms())

    def _admit(self) -> None:
        """Whoever is next, as long as there are slots."""
        while self._window.may_serve_interactive(self._serving):
            interactive_only = not self._window.may_serve(self._serving)
            ticket = self._room.take(self._broker_clock.now_ms(), interactive_only=interactive_only)
            if ticket is None:
                break
            self._waiting.pop(ticket).admit()
        self._tell_if_full()

    def left(self, serving: Serving) -> None:
        """It was settled, or lost: its place is free."""
        self._left_at = self._clock()
        ticket = self._tickets.pop(serving, None)
        if ticket is None:
            return
        if self._waiting.pop(ticket, None) is None:
            self._room.charge(ticket, serving.lane, serving.cost)
        else:
            self._room.remove(ticket)
        self._admit()
        self._changed.set()

    @property
    def _serving(self) -> int:
        return len(self._tickets) - len(self._waiting)

    def _tell_if_full(self) -> None:
        if self._window.may_serve(self._serving):
            self._full.clear()
        else:
            self._full.set()
