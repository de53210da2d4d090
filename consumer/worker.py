"""The consumer's loop: pull → open → prepare → run → publish → settle, many requests side by side.

    intake ──► serving, a task for each ─────────────────────────────────────────────► settle
      pull, choose   open, parse, tokenise ──► placement ──► engine        publisher ──► log
                                                  ▲             │              ▲
                                                  └── watchdog ◄┘ ── outputs ──┘

Side tasks do what is common to all requests: the watchdog runs the engine, the publisher appends, the
heartbeat renews leases, cancellations are listened to, the registry is told what is served here, and the
backlog is looked at. They are watched: if one of them ends, the worker hands its requests back and stops
with that error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from headrace.broker.contract import ConsumerSession, Serves
from headrace.broker.events import Event
from headrace.broker.message import Delivery
from headrace.broker.names import Names
from headrace.consumer.announcer import Announcer
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.chunks import chunks_of
from headrace.consumer.counters import Counters
from headrace.consumer.doom import Doom
from headrace.consumer.drain import Drain
from headrace.consumer.engine_process import EngineHandle
from headrace.consumer.inflight import InFlight
from headrace.consumer.intake import PULL_WAIT_MS, Intake, room_of, window_of
from headrace.consumer.means import Means, Rules
from headrace.consumer.neighbours import Neighbours, Registry
from headrace.consumer.outage import Outage
from headrace.consumer.outbox import Checkpoints
from headrace.consumer.placement import Placement
from headrace.consumer.prepare import Preparer, served_names
from headrace.consumer.publisher import Publisher
from headrace.consumer.reading_room import ReadingRoom
from headrace.consumer.rest import give_up_unwritten
from headrace.consumer.retries import Retries
from headrace.consumer.serving import Serving
from headrace.consumer.settings import ConsumerSettings
from headrace.consumer.side_tasks import SideTasks, cancel
from headrace.consumer.turn import Turn
from headrace.consumer.watchdog import Watchdog
from headrace.consumer.window import slots_for
from headrace.gpu_engine.api import EngineInfo

log = logging.getLogger(__name__)

HEARTBEATS_PER_LEASE = 4
# Both together: less than whoever stops this process waits beyond the grace, so that it ends in order.
LAST_WORDS_S = 1.5  # for the engine's last tokens of what is handed back
RELEASE_S = 1.5  # for handing it back


@dataclass(frozen=True, slots=True)
class Parts:
    """What a worker is made of, so that tests can put in their own.

    `registry` knows the other consumers. `start_engine` begins to load an engine; `prepare` makes the
    preparer for it once it is ready; `on_ready` is told of each engine that is ready, the first one and every
    restarted one."""

    session: ConsumerSession
    registry: Registry
    start_engine: Callable[[], EngineHandle]
    prepare: Callable[[EngineInfo], Awaitable[Preparer]]
    on_ready: Callable[[EngineInfo, EngineHandle], None] = lambda info, engine: None
    clock: Callable[[], float] = time.monotonic


class Worker:
    """Serves requests from one session with one engine, until it is drained.

    `run` returns after a drain and raises what ended it otherwise: EngineUnusable, EngineSick, or a
    BrokerError that waiting does not cure. Cancelling `run` stops at once and hands nothing back: leases
    lapse then, as after a crash.
    """

    def __init__(self, parts: Parts, settings: ConsumerSettings, drain: Drain) -> None:
        self.counters = Counters()
        self._parts = parts
        self._session = parts.session
        self._settings = settings
        self._drain = drain
        self._servings: dict[InFlight, Serving] = {}
        self._by_record: dict[str, Serving] = {}  # the latest one of each
        self._tasks: dict[InFlight, asyncio.Task[None]] = {}
        self._side = SideTasks()
        self._engine_ready: asyncio.Future[EngineInfo] = asyncio.get_running_loop().create_future()
        self._intake: Intake | None = None  # once the engine is ready
        self._neighbours = Neighbours(parts.registry, settings.pool, settings.lanes, parts.clock)
        self._broker_clock = BrokerClock(parts.clock)
        self._outage = Outage(parts.clock)
        self._announcer = Announcer(self._session, self._outage)
        rules = Checkpoints(settings.publish.checkpoint_tokens, settings.publish.checkpoint_s)
        self._publisher = Publisher(
            self._session,
            lambda: self._servings,
            self._published,
            rules,
            parts.clock,
            self._outage,
            self._chunks,
        )
        trials = Turn()
        self._placement = Placement(self._received, parts.clock, settings.watchdog.quarantine_after, trials)
        self._room = ReadingRoom(trials, self._placement.look_again)
        self._watchdog = Watchdog(
            parts.start_engine, self._placement, settings.watchdog, self._ready, parts.clock
        )

    @property
    def in_flight(self) -> int:
        """Requests held at present."""
        return len(self._servings)

    @property
    def waiting(self) -> int:
        """Those of them that have no slot yet."""
        return len(self._intake.waiting) if self._intake is not None else 0

    async def run(self) -> None:
        side = self._side
        engine = side.start_lasting(self._watchdog.run(), "engine watchdog")
        publisher = side.start_lasting(self._publisher.run(), "publisher")
        side.start_lasting(self._heartbeat(), "heartbeat")
        side.start_lasting(self._listen(), "cancellations")
        side.start_lasting(self._announcer.run(), "registry")
        pull = side.start(self._pull(), "pull loop")
        end = asyncio.create_task(self._drained(pull), name="drain")
        try:
            await asyncio.wait({end, side.failed}, return_when=asyncio.FIRST_COMPLETED)
            await cancel([pull, end])
            await self._hand_back(can_run=not engine.done(), can_flush=not publisher.done())
            if side.failed.done():
                side.failed.result()
        finally:
            await side.stop([pull, end, *self._tasks.values()])
            log.info("stopped: %s; engine restarts: %d", self.counters, self._watchdog.restarts)

    # -------------------------------------------------------------------------------- pulling, serving

    async def _pull(self) -> None:
        """Fills the window, until the drain."""
        means = await self._means()
        batch_size = self._engine_ready.result().max_batch_size
        intake = self._intake = Intake(
            self._session,
            window_of(self._settings, self._settings.max_in_flight or slots_for(batch_size)),
            room_of(self._settings),
            self._neighbours,
            self._broker_clock,
            self._outage,
            poll_s=self._settings.window.interactive_poll_s,
            clock=self._parts.clock,
        )
        self._side.start_lasting(intake.watch_backlog(), "look at the backlog")
        if not self._drain.requested:
            await intake.run(lambda delivery: self._take(delivery, means))

    async def _means(self) -> Means:
        info = await self._engine_ready
        settings = self._settings
        return Means(
            session=self._session,
            preparer=await self._parts.prepare(info),
            room=self._room,
            placement=self._placement,
            publisher=self._publisher,
            neighbours=self._neighbours,
            retries=Retries(settings.retry, self._broker_clock),
            outage=self._outage,
            rules=Rules(
                Names(settings.prefix),
                settings.pool,
                settings.queue,
                settings.watchdog.quarantine_after,
                settings.watchdog.poison_deaths,
            ),
            model=self._model,
            info=info,
            clock=self._parts.clock,
            broker_clock=self._broker_clock,
        )

    @property
    def _model(self) -> str:
        """The name that clients see."""
        return self._settings.model or self._engine_ready.result().model

    def _take(self, delivery: Delivery, means: Means) -> Serving:
        if (former := self._by_record.get(delivery.record)) is not None:
            former.lost("its lease lapsed before it came back to us")
        serving = Serving.of(delivery, means)
        flight = serving.flight
        self.counters.pulled += 1
        self._servings[flight] = self._by_record[delivery.record] = serving
        if self._drain.requested:
            serving.release()
        self._tasks[flight] = self._side.start(self._serve(serving), f"request {flight.request_id}")
        return serving

    async def _serve(self, serving: Serving) -> None:
        flight = serving.flight
        try:
            settled = await serving.run()
        finally:
            del self._servings[flight], self._tasks[flight]
            record = flight.delivery.record
            if self._by_record.get(record) is serving:  # else it was taken anew meanwhile
                del self._by_record[record]
            if self._intake is not None:
                self._intake.left(serving)
        self.counters.left(flight, settled=settled)
        log.debug("request %s left: %s", flight.request_id, flight.ending)

    # -------------------------------------------------------------------------------------- side tasks

    async def _heartbeat(self) -> None:
        pause_s = self._session.lease_ms / 1000 / HEARTBEATS_PER_LEASE
        while True:
            await asyncio.sleep(pause_s)
            self._lost(await self._outage.insist(self._session.heartbeat, "the heartbeat", longest_s=pause_s))

    async def _listen(self) -> None:
        async for ref in self._session.cancellations():
            for serving in [s for f, s in self._servings.items() if f.delivery.ref == ref]:
                serving.stop(Doom.CANCELLED)

    def _lost(self, deliveries: Sequence[Delivery]) -> None:
        """The same request may have come back since, as another delivery: that one is not lost."""
        for delivery in deliveries:
            serving = self._by_record.get(delivery.record)
            if serving is not None and serving.flight.delivery is delivery:
                serving.lost("its lease lapsed")

    def _ready(self, info: EngineInfo, engine: EngineHandle) -> None:
        if not self._engine_ready.done():
            self._engine_ready.set_result(info)
        self._announcer.tell(Serves(tuple(served_names(self._settings, info)), info.max_batch_size))
        self._parts.on_ready(info, engine)

    def _received(self, flight: InFlight) -> None:
        """The placement has something new of this request."""
        self._publisher.wake()
        if flight in self._servings:
            self._servings[flight].moved()

    def _published(self, flight: InFlight) -> None:
        """The publisher wrote something of this request, or found that it is not ours."""
        if flight.ending is not None:
            self._placement.remove(flight)
        self._placement.written(flight)
        if flight in self._servings:
            self._servings[flight].moved()

    def _chunks(self, flight: InFlight, events: Sequence[Event]) -> list[bytes]:
        created = flight.delivery.published_ms // 1000
        return chunks_of(flight, events, model=flight.adapter or self._model, created=created)

    # ---------------------------------------------------------------------------------------- stopping

    async def _drained(self, pull: asyncio.Task[None]) -> None:
        """Returns when a drain was asked for, and all requests left or the grace is over. What waits for its
        turn goes to others at once."""
        await self._drain.wait_requested()
        log.info("draining: %d requests in flight", self.in_flight)
        over = asyncio.create_task(self._drain.wait_over())
        try:
            if self._intake is not None:  # else it has not begun to pull
                self._intake.close()
                for serving in self._intake.waiting:
                    serving.recall()
                patience_s = 2 * PULL_WAIT_MS / 1000
                await asyncio.wait({pull, over}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            while self._tasks and not over.done():
                await asyncio.wait({over, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel([over])

    async def _hand_back(self, *, can_run: bool, can_flush: bool) -> None:
        """Releases what is left, with its tokens in the log, so that others go on with it."""
        if can_run and can_flush:
            for serving in list(self._servings.values()):
                serving.recall()
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=LAST_WORDS_S)
        for serving in list(self._servings.values()):
            serving.release()
            if not can_flush:
                give_up_unwritten(serving.flight)
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=RELEASE_S)
