"""The story of one request in this consumer, from its pull to its settlement."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.contract import ConsumerSession, Opened, Settlement
from headrace.broker.events import Started
from headrace.broker.lines.request import LineError
from headrace.broker.message import Delivery
from headrace.consumer.inflight import Doom, Ending, Exit, InFlight
from headrace.consumer.ownership import first_open, settle_for_sure
from headrace.consumer.placement import Placement
from headrace.consumer.prepare import Preparer
from headrace.consumer.publisher import Publisher
from headrace.consumer.results import settlement

log = logging.getLogger(__name__)

SEED_BITS = 63  # fits every signed and unsigned 64-bit field on its way


@dataclass(frozen=True, slots=True)
class Means:
    """What all requests of a consumer share. `model`: the name that clients see; `fingerprint`: what the
    engine says of model and tokenizer."""

    session: ConsumerSession
    preparer: Preparer
    placement: Placement
    publisher: Publisher
    model: str
    fingerprint: str
    clock: Callable[[], float]


@dataclass(eq=False)
class Serving:
    """One request in flight and its task."""

    flight: InFlight
    means: Means
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _deadline: asyncio.TimerHandle | None = None
    _settling: bool = False

    @classmethod
    def of(cls, delivery: Delivery, means: Means) -> Serving:
        return cls(InFlight(delivery, means.clock()), means)

    def moved(self) -> None:
        """Something about the flight changed: a token, an acknowledgement, its ending."""
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
            if self._deadline is not None:
                self._deadline.cancel()

    # --------------------------------------------------------------------------- stopped from outside

    def stop(self, doom: Doom) -> None:
        """Cancelled, or its deadline passed."""
        if self.flight.stop(doom, self.means.clock()):
            self.means.placement.abort(self.flight)
        elif self.flight.ending is not None:
            self._leave_engine()

    def release(self) -> None:
        """Hand it back; what was generated goes into the log first."""
        self.flight.end(Ending(Exit.RELEASE))
        self._leave_engine()

    def lost(self, reason: str) -> None:
        """Somebody else owns it. Not believed while it is being settled: a heartbeat that crosses with the
        settlement finds the delivery gone because we ended it, and the settlement's own answer tells."""
        if self._settling:
            return
        self.flight.disowned(Ending(Exit.DROP, reason=reason))
        self._leave_engine()

    def _leave_engine(self) -> None:
        self.means.placement.remove(self.flight)
        self.means.publisher.wake()
        self.moved()

    # ------------------------------------------------------------------------------------- beginning

    async def _begin(self) -> None:
        """Up to the engine's door; a request that is not to be run gets its ending on the way."""
        flight = self.flight
        if flight.ending is not None:
            return
        opened = await first_open(self.means.session, flight)
        if opened is None:
            return
        self._watch_deadline(opened)
        await self._parse()
        if flight.ending is None:
            await self._tokenise(opened)

    def _watch_deadline(self, opened: Opened) -> None:
        deadline_ms = self.flight.delivery.message.deadline_ms
        if deadline_ms is None:
            return
        left_ms = deadline_ms - opened.now_ms
        if left_ms <= 0:
            self.stop(Doom.EXPIRED)
        else:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(left_ms / 1000, self.stop, Doom.EXPIRED)

    async def _parse(self) -> None:
        """Also for one that is over already: its result line carries the custom id."""
        parsed = await self.means.preparer.parse(self.flight.delivery.message)
        if isinstance(parsed, LineError):
            self.flight.refuse(parsed)
        else:
            self.flight.parsed, self.flight.custom_id = parsed, parsed.custom_id

    async def _tokenise(self, opened: Opened) -> None:
        flight = self.flight
        assert flight.parsed is not None
        resumes = flight.resumable(self.means.fingerprint)
        kept = flight.token_ids.copy() if resumes else []
        prepared = await self.means.preparer.tokenise(flight.parsed, kept)
        if isinstance(prepared, LineError):
            flight.refuse(prepared)
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
