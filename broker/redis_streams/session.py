"""One consumer process's right to take requests, over Redis Streams.

A lease is a pending entry of the consumer group: its owner is the consumer named there, its clock the
server's. What the session holds it also keeps in memory, to renew it and never to hand it out twice. All
decisions about ownership and epochs are the scripts', in one atomic step each.

Leases are measured against the `lease_ms` of whoever sweeps: give all consumers of an installation the same.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from headrace.broker.backoff import Backoff
from headrace.broker.contract import (
    Append,
    Opened,
    OpenOutcome,
    PassOn,
    Serves,
    Settlement,
)
from headrace.broker.errors import BrokerError, BrokerUnavailable
from headrace.broker.fold import Fold
from headrace.broker.headers import Unreadable
from headrace.broker.message import Delivery, Lane, RequestRef
from headrace.broker.names import Names
from headrace.broker.redis_streams.bundle import Bundle
from headrace.broker.redis_streams.calls import PAGE, SessionCalls, entry_of
from headrace.broker.redis_streams.codec import Entry, check_pool, decode, pairs
from headrace.broker.redis_streams.link import BLOCK_MS, Link, Reply
from headrace.broker.redis_streams.logs import entry_place, log_entries, read_page
from headrace.broker.redis_streams.looking import QueueLooker, TakenEntry
from headrace.broker.redis_streams.registry import describe
from headrace.broker.redis_streams.scripts import Scripts
from headrace.broker.redis_streams.settings import Retention
from headrace.broker.wire import decode_event
from headrace.broker.writing_rules import check_append, check_settlement

logger = logging.getLogger(__name__)

_CHUNK = 256  # entries in one heartbeat call
_APPENDS = 64  # requests in one call, which takes the server 50 µs each: others of its clients come between
_GOODBYE_S = 1.0  # a courtesy: names that say nothing are forgotten in time
_WRITTEN, _OVERTAKEN = 1, -1  # answers of the scripts; 0 is "lost"


@dataclass(slots=True)
class _Hold:
    delivery: Delivery
    epoch: int = 0  # of this session's last `open`
    settling: bool = False  # what it is on the server is over, maybe


def new_consumer_name() -> str:
    """Host and process for people, random digits so that no process ever has another's name."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class RedisSession:
    """See `ConsumerSession`. A cancelled `pull` loses nothing: while it waits it holds nothing, and what the
    server gave to a call that was broken off comes back when its lease lapses."""

    def __init__(
        self,
        link: Link,
        blocking: Link,
        names: Names,
        retention: Retention,
        lanes: Sequence[Lane],
        pool: str,
        lease_ms: int,
    ) -> None:
        self._name = new_consumer_name()
        self._link, self._blocking, self._scripts = link, blocking, Scripts(Bundle(link))
        self._names, self._lanes, self._pool, self._lease_ms = names, tuple(lanes), pool, lease_ms
        self._calls = SessionCalls(names, retention, self._name, lanes, pool)
        self._queue = QueueLooker(link, blocking, names, self._calls, lanes, pool, lease_ms)
        self._holds: dict[Entry, _Hold] = {}
        self._positions: dict[str, _Hold] = {}  # of all that is held
        self._lost: list[Delivery] = []  # found by a heartbeat that failed before it could tell
        self._says = b""  # what the registry holds of this consumer
        self._control_seen = "0-0"
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    async def start(self) -> None:
        """Prepares the lanes, and notes the place from which on cancellations are this session's."""
        await self._queue.make_groups()
        if self._pool:
            await self._link.call("SADD", self._names.pools, self._pool)
        await self._forget_consumers("")
        last = await self._link.call("XREVRANGE", self._names.control, "+", "-", "COUNT", 1)
        self._control_seen = last[0][0].decode() if last else "0-0"

    # -------------------------------------------------------------------------------------- taking

    async def pull(self, limit: int, wait_ms: int, *, reserved: int = 0) -> list[Delivery]:
        deadline = time.monotonic() + wait_ms / 1000
        while limit > 0:
            looked = await self._queue.look(limit, reserved, self._holds)
            deliveries = await self._accept(looked.entries)
            left = deadline - time.monotonic()
            if deliveries or left <= 0:
                return deliveries
            if not looked.entries:
                await self._queue.wait(looked, left)
        return []

    async def _accept(self, entries: Sequence[TakenEntry]) -> list[Delivery]:
        """Deliveries for the caller. No await between noting a hold and returning it: a pull that is
        cancelled must not leave a hold that nobody knows of and the heartbeat renews for ever."""
        deliveries, refused = [], []
        for taken in entries:
            try:
                delivery = decode(
                    taken.entry, taken.fields, taken.lane, self._pool, self._names, taken.claimed
                )
            except Unreadable as error:
                refused.append((taken.entry, str(error)))
            else:
                deliveries.append(delivery)
        for entry, reason in refused:
            await self._refuse(entry, reason)
        return [delivery for delivery in deliveries if self._take_hold(delivery)]

    def _take_hold(self, delivery: Delivery) -> bool:
        """False for what the session holds already: the entry itself, or a copy that carries its position.
        The copy is left to lapse, and opens as a twin elsewhere or later. What is being settled may come back
        before the answer to its settlement does."""
        holder = self._positions.get(delivery.position)
        if holder is not None and not holder.settling:
            return False
        self._holds[entry_of(delivery)] = self._positions[delivery.position] = _Hold(delivery)
        return True

    async def _refuse(self, entry: Entry, reason: str) -> None:
        try:
            await self._scripts.run(self._calls.refuse(entry, reason))
            logger.warning("dead-lettered %s: %s", entry.place, reason)
        except BrokerError as error:
            logger.warning("could not dead-letter %s, it will be seen again: %s", entry.place, error)

    # ------------------------------------------------------------------------------------- holding

    async def announce(self, serves: Serves) -> None:
        self._says = describe(self._lease_ms, self._pool, self._lanes, serves)
        await self._scripts.run(self._calls.announce(self._says))

    async def heartbeat(self) -> list[Delivery]:
        """Brings due retries back, too, and says that this consumer is alive."""
        held = list(self._holds.values())
        for start in range(0, max(len(held), 1 if self._says else 0), _CHUNK):
            chunk = held[start : start + _CHUNK]
            call = self._calls.heartbeat([entry_of(hold.delivery) for hold in chunk], self._says)
            for number in await self._scripts.run(call):
                hold = chunk[number - 1]
                if self._drop(hold):  # not given up, or taken anew, meanwhile
                    self._lost.append(hold.delivery)
        lost, self._lost = self._lost, []
        return lost

    async def open(self, delivery: Delivery) -> Opened:
        hold = self._hold(delivery)
        if hold is None:
            return Opened(OpenOutcome.LOST)
        reply = await self._scripts.run(self._calls.open(delivery))
        name, epoch, cancelled, now_ms, page = reply
        outcome = OpenOutcome(name.decode())
        if outcome is OpenOutcome.LOST:
            self._drop(hold)
        if outcome is not OpenOutcome.RUN:
            return Opened(outcome, now_ms=now_ms)
        hold.epoch = epoch
        state = await self._fold(self._names.log(delivery.ref), page)
        return Opened(outcome, epoch, state, bool(cancelled), now_ms)

    async def _fold(self, log: str, first_page: Reply) -> Fold:
        state, entries = Fold(), log_entries(first_page)
        while True:
            for _, data in entries:
                state.read(decode_event(data))
            if len(entries) < PAGE:
                return state
            entries = await read_page(self._link, log, entry_place(entries[-1][0]))

    async def append(self, batch: Sequence[Append]) -> list[bool]:
        for item in batch:
            check_append(item)
        starts = range(0, len(batch), _APPENDS)
        calls = [self._calls.append(batch[start : start + _APPENDS]) for start in starts]
        answers = list(itertools.chain.from_iterable(await self._scripts.run_each(calls)))
        for item, answer in zip(batch, answers, strict=True):
            if answer != _WRITTEN:
                self._give_up(item.delivery, item.epoch, answer)
        return [answer == _WRITTEN for answer in answers]

    async def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        check_settlement(epoch, settlement)
        if isinstance(settlement, PassOn):
            check_pool(settlement.pool)
        hold = self._hold(delivery)
        if hold is not None:
            hold.settling = True
        try:
            answer = await self._scripts.run(self._calls.settle(delivery, epoch, settlement))
        finally:
            if hold is not None:
                hold.settling = False
        if answer == _WRITTEN:
            if hold is not None:
                self._drop(hold)
        else:
            self._give_up(delivery, epoch, answer)
        return bool(answer == _WRITTEN)

    def _hold(self, delivery: Delivery) -> _Hold | None:
        """The hold on this very delivery. An entry that was lost and taken anew is another delivery: what is
        still under way for the first must neither fence nor forget the second."""
        hold = self._holds.get(entry_of(delivery))
        return hold if hold is not None and hold.delivery is delivery else None

    def _drop(self, hold: _Hold) -> bool:
        """Forgets a hold; False where it was forgotten before."""
        held = self._hold(hold.delivery) is hold
        if held:
            self._forget(entry_of(hold.delivery))
        return held

    def _forget(self, entry: Entry) -> None:
        hold = self._holds.pop(entry, None)
        if hold is not None and self._positions.get(hold.delivery.position) is hold:
            del self._positions[hold.delivery.position]

    def _give_up(self, delivery: Delivery, epoch: int, answer: int) -> None:
        """Forgets a delivery that a script refused, unless only an older epoch of our own was refused."""
        hold = self._hold(delivery)
        if hold is not None and (answer != _OVERTAKEN or epoch == hold.epoch):
            self._drop(hold)

    # --------------------------------------------------------------------------------- looking on

    async def cancellations(self) -> AsyncIterator[RequestRef]:
        """From the start of the session on, so that none falls between an `open` and the first read."""
        backoff = Backoff()
        while not self._closed:
            read = ("XREAD", "COUNT", PAGE, "BLOCK", BLOCK_MS, "STREAMS", self._names.control)
            try:
                reply = await self._blocking.call(*read, self._control_seen)
            except BrokerUnavailable:
                await backoff.wait()
                continue
            backoff.reset()
            for entry_id, flat in reply[0][1] if reply else ():
                self._control_seen = entry_id.decode()
                fields = {name: value.decode(errors="replace") for name, value in pairs(flat)}
                if b"cancel" in fields:
                    yield RequestRef(fields[b"cancel"], fields.get(b"tenant", ""))

    async def close(self) -> None:
        self._closed = True
        try:
            async with asyncio.timeout(_GOODBYE_S):
                if self._says:
                    await self._link.call("HDEL", self._names.registry, self._name)
                await self._forget_consumers(self._name)
        except (BrokerUnavailable, TimeoutError):
            logger.debug("closed without saying goodbye: the broker is away")

    async def _forget_consumers(self, name: str) -> None:
        """Names of former processes that hold nothing; `name` at once, others after long silence."""
        silent_ms = max(60 * 60 * 1000, 20 * self._lease_ms)
        await self._scripts.run(self._calls.forget_consumers(name, silent_ms))
