"""The story of one request in this consumer, from its pull to its settlement."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.broker.blobs import BlobError, BlobUnreachable
from headrace.broker.contract import ConsumerSession, Opened, Settlement
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Started
from headrace.broker.lines.request import LineError
from headrace.broker.message import Delivery, Lane
from headrace.broker.names import Names
from headrace.broker.queue_policy import QueuePolicy
from headrace.consumer import failures
from headrace.consumer.broker_clock import BrokerClock
from headrace.consumer.endings import Ending, Exit
from headrace.consumer.fair_queue import Ticket
from headrace.consumer.inflight import Doom, InFlight, Phase
from headrace.consumer.neighbours import Neighbours
from headrace.consumer.ownership import first_open, settle_for_sure
from headrace.consumer.placement import Placement
from headrace.consumer.prepare import Preparer
from headrace.consumer.publisher import Publisher
from headrace.consumer.results import settlement
from headrace.consumer.settings import RetrySettings

log = logging.getLogger(__name__)

SEED_BITS = 63  # fits every signed and unsigned 64-bit field on its way
BYTES_PER_TOKEN = 4  # of a prompt, roughly; put right when the request ends

_ANY_TIME = QueuePolicy()


@dataclass(frozen=True, slots=True)
class Rules:
    """What settings say of each request. `poison_deaths`: deaths alone that convict it."""

    names: Names
    pool: str
    queue: Mapping[Lane, QueuePolicy]
    retry: RetrySettings
    poison_deaths: int


@dataclass(frozen=True, slots=True)
class Means:
    """What all requests of a consumer share. `model`: the name that clients see; `fingerprint`: what the
    engine says of model and tokenizer."""

    session: ConsumerSession
    preparer: Preparer
    placement: Placement
    publisher: Publisher
    neighbours: Neighbours
    model: str
    fingerprint: str
    rules: Rules
    clock: Callable[[], float]
    broker_clock: BrokerClock


@dataclass(eq=False)
class Serving:
    """One delivery and its task. It waits until it is admitted: has one of the slots."""

    flight: InFlight
    means: Means
    admitted: bool = False
    _hastened: bool = False
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _timers: list[asyncio.TimerHandle] = field(default_factory=list)
    _settling: bool = False

    @classmethod
    def of(cls, delivery: Delivery, means: Means) -> Serving:
        return cls(InFlight(delivery, means.clock()), means)

    @property
    def lane(self) -> Lane:
        return self.flight.delivery.message.lane

    def ticket(self) -> Ticket:
        """What the waiting room needs to know."""
        message = self.flight.delivery.message
        size = message.claim.size if message.claim is not None else len(message.body)
        limit = self._policy.timeout_of(message) if self._policy.on_timeout == "delay" else None
        return Ticket(
            tenant=message.tenant,
            size=len(message.body),
            cost=1 + size / BYTES_PER_TOKEN,
            deadline_ms=message.deadline_ms,
            late_at_ms=None if limit is None else self.flight.delivery.published_ms + limit,
        )

    @property
    def cost(self) -> float:
        """Tokens that were computed for it here."""
        prepared = self.flight.prepared
        prompt = len(prepared.prompt_ids) if prepared is not None else 0
        return 1.0 + prompt + len(self.flight.token_ids) - self.flight.kept

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
            await self._until(lambda: self.flight.flushed)
            self._settling = True
            return await settle_for_sure(self.means.session, self.flight, self._settlement)
        finally:
            self._stop_timers()

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
        self.means.publisher.wake()
        self.moved()

    def _hasten(self) -> None:
        self._hastened = True
        self._moved.set()

    # ---------------------------------------------------------------------------------------- waiting

    async def _begin(self) -> None:
        """Up to the engine's door; a request that is not to be run gets its ending on the way."""
        flight = self.flight
        self._set_timers(self.means.broker_clock.now_ms(), self._hasten, self._hasten)
        await self._until(lambda: self.admitted or self._hastened or flight.ending is not None)
        if flight.ending is not None:
            return
        flight.phase = Phase.OPENING
        opened = await first_open(self.means.session, flight, self.means.rules.retry)
        if opened is None:
            return
        self._judge_times(opened)
        await self._until(lambda: self.admitted or flight.ending is not None)
        await self._prepare(opened)

    def _judge_times(self, opened: Opened) -> None:
        """By the broker's clock, which has the last word."""
        self.means.broker_clock.heard(opened.now_ms)
        message = self.flight.delivery.message
        if message.deadline_ms is not None and message.deadline_ms <= opened.now_ms:
            self.stop(Doom.EXPIRED)
        elif (due := self._due_ms) is not None and due < opened.now_ms:
            self._overdue(opened.now_ms)
        else:
            self._set_timers(opened.now_ms, self._expire, self._lose_patience)

    def _set_timers(
        self, now_ms: float, at_deadline: Callable[[], None], when_overdue: Callable[[], None]
    ) -> None:
        self._stop_timers()
        loop = asyncio.get_running_loop()
        deadline_ms = self.flight.delivery.message.deadline_ms
        if deadline_ms is not None:
            self._timers.append(loop.call_later(max(0.0, deadline_ms - now_ms) / 1000, at_deadline))
        if self._due_ms is not None:
            self._timers.append(loop.call_later(max(0.0, self._due_ms - now_ms) / 1000, when_overdue))

    def _stop_timers(self) -> None:
        while self._timers:
            self._timers.pop().cancel()

    def _expire(self) -> None:
        self.stop(Doom.EXPIRED)

    def _lose_patience(self) -> None:
        if not self.admitted:
            self._overdue(self.means.broker_clock.now_ms())
            self._leave_engine()

    @property
    def _policy(self) -> QueuePolicy:
        return self.means.rules.queue.get(self.lane, _ANY_TIME)

    @property
    def _due_ms(self) -> int | None:
        """When the request is refused unless it has begun; None: it may wait, or somebody began it before."""
        limit = self._policy.timeout_of(self.flight.delivery.message)
        if limit is None or self._policy.on_timeout == "delay" or self.flight.has_begun:
            return None
        return self.flight.delivery.published_ms + limit

    def _overdue(self, now_ms: float) -> None:
        limit = self._policy.timeout_of(self.flight.delivery.message)
        assert limit is not None
        waited = round(now_ms) - self.flight.delivery.published_ms
        self.flight.fail(failures.overdue(self.lane, waited, limit))

    # -------------------------------------------------------------------------------------- preparing

    async def _prepare(self, opened: Opened) -> None:
        if self.flight.ending is None or self.flight.ending.terminal is not None:
            await self._parse()  # also if it is over: its result line carries the custom id
        if self.flight.ending is None and self.flight.deaths.lone >= self.means.rules.poison_deaths:
            self.flight.fail(failures.poison(self.flight.deaths))
        if self.flight.ending is None:
            await self._tokenise(opened)

    async def _parse(self) -> None:
        flight, preparer = self.flight, self.means.preparer
        try:
            parsed = await preparer.parse(flight.delivery.message)
        except BlobUnreachable as error:
            self._put_off(str(error))
        except BlobError as error:
            flight.fail(failures.body_gone(str(error)))
        else:
            flight.custom_id = parsed.custom_id
            if isinstance(parsed, LineError):
                flight.fail(failures.refused(parsed))
                return
            flight.parsed = parsed
            if parsed.model is not None and not preparer.serves(parsed.model):
                await self._redirect(parsed.model)

    def _put_off(self, reason: str) -> None:
        """Waiting may cure it."""
        deadline_ms = self.flight.delivery.message.deadline_ms
        left_ms = None if deadline_ms is None else round(deadline_ms - self.means.broker_clock.now_ms())
        attempt = failures.attempts(self.flight.state.put_off)
        failure = failures.transient(reason, self.means.rules.retry, attempt=attempt, left_ms=left_ms)
        self.flight.fail(failure)

    async def _redirect(self, model: str) -> None:
        """We do not serve this model: to a pool that does, once, or back to the client."""
        neighbours = self.means.neighbours
        try:
            pool = await neighbours.pool_for(model)
            peer = await neighbours.peer_serves(model)
            others = await neighbours.served()
        except BrokerUnavailable as error:
            self._put_off(str(error))
            return
        if pool is not None and self._may_move:
            self.flight.end(Ending(Exit.MOVE, pool=pool))
        elif peer:
            self._put_off(f"the model {model[:100]!r} is served by others of this pool only")
        else:
            own = self.means.preparer.shown
            shown = [*own, *(name for name in others if not self.means.preparer.serves(name))]
            self.flight.fail(failures.nobody_serves(model, shown))

    @property
    def _may_move(self) -> bool:
        """Only before its first token, and only once: pools whose registry entries are out of date must not
        play it back and forth. Its position tells where it was published (a log that moved on Kafka does
        not)."""
        home = self.means.rules.names.requests(self.lane, self.means.rules.pool)
        at_home = self.flight.position.startswith(f"{home}/")
        return at_home and self.flight.state.moved is None and not self.flight.token_ids

    async def _tokenise(self, opened: Opened) -> None:
        flight = self.flight
        assert flight.parsed is not None
        resumes = flight.resumable(self.means.fingerprint)
        kept = flight.token_ids.copy() if resumes else []
        prepared = await self.means.preparer.tokenise(flight.parsed, kept)
        if isinstance(prepared, LineError):
            flight.fail(failures.refused(prepared))
        elif flight.ending is None:
            started = self._started(opened, len(kept), flight.last_seed if resumes else None)
            flight.begin(prepared, started, self.means.clock())
            self.means.publisher.wake()
            self.means.placement.add(flight)

    def _started(self, opened: Opened, kept: int, last_seed: int | None) -> Started:
        return Started(
            epoch=opened.epoch,
            consumer=self.means.session.name,
            delivery=self.flight.position,
            seed=self._seed() if last_seed is None else last_seed,
            body_hash=self.flight.body_hash,
            fingerprint=self.means.fingerprint,
            kept=kept,
            at_ms=opened.now_ms,
            deaths=self.flight.deaths.all,
            lone_deaths=self.flight.deaths.lone,
        )

    def _seed(self) -> int:
        assert self.flight.parsed is not None
        wanted = self.flight.parsed.sampling.seed
        return secrets.randbits(SEED_BITS) if wanted is None else wanted & ((1 << SEED_BITS) - 1)

    # ---------------------------------------------------------------------------------------- ending

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    def _settlement(self, flight: InFlight) -> Settlement:
        return settlement(flight, self.means.model, int(time.time()))
