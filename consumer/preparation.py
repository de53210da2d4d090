"""From an opened delivery to the engine's door: its body is fetched, read and made ready, or it gets its
ending on the way.

A body that killed its reader before is read alone, and the log says so first (`reading_room`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from msgspec import structs

from headrace.broker.blobs import BlobError, BlobUnreachable
from headrace.broker.contract import Append, Opened
from headrace.broker.errors import BrokerUnavailable
from headrace.broker.events import Started
from headrace.broker.lines.request import LineError
from headrace.broker.message import Message
from headrace.consumer import failures
from headrace.consumer.elsewhere import redirect
from headrace.consumer.inflight import InFlight
from headrace.consumer.means import Means
from headrace.consumer.prepare import Reading

SEED_BITS = 63  # fits every signed and unsigned 64-bit field on its way


class Preparation:
    """Of one request. `until` waits for what may change whenever something of the request moves."""

    def __init__(
        self,
        flight: InFlight,
        means: Means,
        opened: Opened,
        until: Callable[[Callable[[], bool]], Awaitable[None]],
    ) -> None:
        self._flight, self._means, self._opened, self._until = flight, means, opened, until

    async def run(self) -> None:
        """Ends the request, or puts it before the engine."""
        flight = self._flight
        deaths = flight.suspicion.deaths
        if flight.ending is None and deaths.lone >= self._means.rules.poison_deaths:
            flight.fail(failures.poison(deaths, was_read=flight.past.was_read))
        if flight.ending is None:
            message = await self._fetch()
            if message is not None:
                await (self._read_alone(message) if self._is_suspect else self._read_in_company(message))
        elif flight.terminal() is not None and await self._may_be_read_in_passing():
            # Its line carries the custom id, where that is at hand.
            message = flight.delivery.message
            reading = await self._means.room.together(lambda: self._means.preparer.read(message, None))
            flight.custom_id = reading.parsed.custom_id

    async def _may_be_read_in_passing(self) -> bool:
        """Whether the body is here and not dreaded, and the log knows of the reading where it should."""
        flight, means = self._flight, self._means
        if flight.delivery.message.claim is not None:
            return False
        deaths = flight.suspicion.deaths
        if flight.past.was_read or not flight.suspicion.doubtful:
            return True
        if deaths.lone or deaths.all >= means.rules.quarantine_after:
            return False
        mark = Append(flight.delivery, flight.epoch, [self._statement(flight.answers.num_tokens)])
        try:
            [written] = await means.session.append([mark])
        except BrokerUnavailable:
            return False
        return written

    async def _fetch(self) -> Message | None:
        """With its body; None: that cannot be had, and its ending says so, or it ended meanwhile."""
        flight, message = self._flight, self._flight.delivery.message
        if message.claim is None:
            return message
        try:
            return await self._fetch_unless_over(message)
        except BlobUnreachable as error:
            self._means.retries.put_off(flight, str(error))
        except BlobError as error:
            flight.fail(failures.body_gone(str(error)))
        return None

    async def _fetch_unless_over(self, message: Message) -> Message | None:
        """A store that is slow, or hangs, holds up nobody who is cancelled, expired, handed back or lost."""
        fetching = asyncio.ensure_future(self._means.preparer.fetch(message))
        over = asyncio.ensure_future(self._until(lambda: self._is_over))
        try:
            await asyncio.wait({fetching, over}, return_when=asyncio.FIRST_COMPLETED)
            return fetching.result() if fetching.done() else None
        finally:
            fetching.cancel()
            over.cancel()
            await asyncio.gather(fetching, over, return_exceptions=True)

    async def _read_alone(self, message: Message) -> None:
        async with self._means.room.alone(lambda: self._is_over):
            await self._mark(alone=True)
            await self._read(message)
            await self._until(lambda: self._is_over or self._flight.stated_in_company)

    async def _read_in_company(self, message: Message) -> None:
        if self._flight.suspicion.doubtful:
            await self._mark(alone=False)
        await self._means.room.together(lambda: self._read(message))

    @property
    def _is_suspect(self) -> bool:
        suspicion = self._flight.suspicion
        return suspicion.doubtful and suspicion.deaths.all >= self._means.rules.quarantine_after

    async def _mark(self, *, alone: bool) -> None:
        """Returns once the log says who has the request, or it is over."""
        flight = self._flight
        if self._is_over:
            return
        started = self._statement(flight.answers.num_tokens)
        flight.mark(structs.replace(started, alone=alone), self._means.clock())
        self._means.publisher.wake()
        await self._until(lambda: self._is_over or flight.stated is not None)

    @property
    def _is_over(self) -> bool:
        return self._flight.ending is not None

    async def _read(self, message: Message) -> None:
        flight = self._flight
        if self._is_over:
            return
        resumes = flight.past.resumable(self._means.info.fingerprints)  # which of them only the body says
        kept = flight.answers.token_ids() if resumes else []
        reading = await self._means.preparer.read(message, kept)
        await self._take_in(reading, sum(map(len, kept)), flight.past.last_seed if resumes else None)

    async def _take_in(self, reading: Reading, kept: int, last_seed: int | None) -> None:
        flight, parsed, prepared = self._flight, reading.parsed, reading.prepared
        flight.custom_id = parsed.custom_id
        if isinstance(parsed, LineError):
            flight.fail(failures.refused(parsed))
            return
        flight.parsed = parsed
        if isinstance(prepared, LineError):
            flight.fail(failures.refused(prepared))
        elif prepared is None:
            assert parsed.model is not None, "one that names no model is for anybody"
            await redirect(flight, parsed.model, self._means)
        elif flight.ending is None:
            fingerprint = self._means.info.fingerprint_with(prepared.adapter)
            if not flight.past.resumable([fingerprint]):  # tokens of another adapter
                prepared, kept, last_seed = structs.replace(prepared, replayed=()), 0, None
            kept = kept if prepared.can_resume else 0
            seed = self._seed() if last_seed is None else last_seed
            flight.begin(prepared, self._statement(kept, seed, fingerprint), self._means.clock())
            self._means.publisher.wake()
            self._means.placement.add(flight)

    def _statement(self, kept: int, seed: int = 0, fingerprint: str = "") -> Started:
        return Started(
            epoch=self._flight.epoch,
            consumer=self._means.session.name,
            delivery=self._flight.position,
            seed=seed,
            body_hash=self._flight.body_hash,
            fingerprint=fingerprint,
            kept=kept,
            at_ms=self._opened.now_ms,
            deaths=self._flight.suspicion.deaths.all,
            lone_deaths=self._flight.suspicion.deaths.lone,
        )

    def _seed(self) -> int:
        assert self._flight.parsed is not None
        wanted = self._flight.parsed.sampling.seed
        return random.getrandbits(SEED_BITS) if wanted is None else wanted & ((1 << SEED_BITS) - 1)
