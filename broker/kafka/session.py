"""One consumer process's right to take requests, over Apache Kafka.

    KafkaSession      pull, open, append, settle                                  this file
    Taking            deliveries out of what is held                              taking
    OwnerThread       owns the group's consumer: polls, tells of the group        owner_thread
    Holdings          the partitions: taken over, filled, given up                holdings
    Restorer          fence, then read                                            restore, epochs
    Tenure            what an owner knows of a partition: folds, twins, commits   tenure, claims, commits
    Appender          events outside transactions                                 appender
    Settler           everything else in transactions                             settlements, settle, items
    Housekeeping      fences repeated, delays forwarded, topics trimmed           housekeeping
    Orphans           partitions that static members left without an owner        orphans
    Reports           what stands of it in the registry                           reports

Leases are those of partitions: the session in the group, which lasts as long as `heartbeat` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence

from headrace.broker.backoff import Backoff
from headrace.broker.contract import (
    Append,
    Opened,
    OpenOutcome,
    Serves,
    Settlement,
)
from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.appender import Appender, Entry
from headrace.broker.kafka.burials import Burials
from headrace.broker.kafka.chunks import Chunks
from headrace.broker.kafka.claims import claim_of
from headrace.broker.kafka.codec import Record
from headrace.broker.kafka.connection import Connection
from headrace.broker.kafka.control import Report
from headrace.broker.kafka.group_reader import GroupReader
from headrace.broker.kafka.holdings import Holdings, HoldingsParts
from headrace.broker.kafka.housekeeping import Housekeeping
from headrace.broker.kafka.membership import owner_options, release_s
from headrace.broker.kafka.opening import Opening
from headrace.broker.kafka.orphans import Orphans
from headrace.broker.kafka.owner_thread import OwnerThread
from headrace.broker.kafka.places import log_key
from headrace.broker.kafka.reports import Reports
from headrace.broker.kafka.restore import Restorer
from headrace.broker.kafka.settle import Settler, SettlerParts
from headrace.broker.kafka.settlements import Settlements
from headrace.broker.kafka.statements import copy_of
from headrace.broker.kafka.taking import Taking
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics, group_of
from headrace.broker.kafka.transactions import Transactions
from headrace.broker.message import Delivery, Lane, RequestRef
from headrace.broker.writing_rules import check_append, check_settlement

logger = logging.getLogger(__name__)

_JOIN_S = 10.0  # a session that has no partitions by then starts all the same
_GOODBYE_S = 3.0


class KafkaSession:
    """See `ConsumerSession`. `start` before anything else."""

    def __init__(self, connection: Connection, lanes: Sequence[Lane], pool: str, lease_ms: int) -> None:
        self._at, self._pool, self._lease_ms = connection, pool, lease_ms
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._lanes = tuple(dict.fromkeys(lanes))
        self._chunks = Chunks(connection)
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    async def start(self) -> None:
        """Joins the group. Raises BrokerRefused where the broker does not let us, for example for a lease
        that is shorter or longer than it allows."""
        await self._at.control.read_to_end()
        topics = await self._at.topics.lanes(self._lanes, self._pool)
        self._build(topics)
        try:
            await self._reader.start()
            await self._settler.warm_up()
            self._settler.start()
            self._show_life()
            self._owner.start()
            self._housekeeping.start()
            if self._at.settings.group_instance_id is not None:
                self._orphans.start()
            self._following = asyncio.create_task(self._follow_control(), name="headrace kafka lanes")
            await self._joined()
        except BaseException:
            await self.close()
            raise

    async def _joined(self) -> None:
        """Waits until all that is ours is restored, so that a first pull finds what stands there. Twice: the
        thread may know of the join a moment before it has been told here what was assigned."""
        deadline, seen = time.monotonic() + _JOIN_S, 0
        while seen < 2 and time.monotonic() < deadline:
            self._check()
            self._show_life()
            await self._holdings.changed(0.005)
            seen = seen + 1 if self._holdings.settled else 0

    def _build(self, topics: Sequence[LaneTopics]) -> None:
        """The parts, and who knows whom."""
        at, loop = self._at, asyncio.get_running_loop()
        self._reader = GroupReader(at.clients, group_of(at.names, self._pool))
        self._appender = Appender(at.publisher, at.settings.max_message_bytes)
        self._holdings = Holdings(HoldingsParts(topics, at.names, self._read_marks, self._let_go))
        blank = Report(self._name, self._pool, self._lanes, self._lease_ms, held={})
        self._reports = Reports(at.control, self._holdings.held, blank)
        owner = owner_options(at, topics, self._pool, self._lease_ms)
        self._owner = OwnerThread(owner, self._holdings, loop)
        name, most_bytes = self._transactional_id, at.settings.max_taken_bytes
        restorer = Restorer(self._reader, at.publisher, self._owner, at.names, name, most_bytes)
        self._holdings.attach(self._owner, restorer)
        self._settler = Settler(self._settler_parts())
        self._settlements = Settlements(at, self._appender, self._settler)
        burials = Burials(self._settler, at.names)
        self._taking = Taking(self._holdings, self._reader, burials, self._lanes, self._is_paused)
        self._opening = Opening(self._reader, self._appender, self._settlements)
        self._housekeeping = Housekeeping(
            at, self._holdings, self._appender, self._settlements, self._settler
        )
        self._orphans = Orphans(at.clients, group_of(at.names, self._pool), topics, self._owner.join_again)

    def _is_paused(self, lane: Lane) -> bool:
        return self._at.control.is_paused(lane, self._pool)

    @property
    def _transactional_id(self) -> str:
        return f"{self._at.names.prefix}.{self._name}"[-200:]

    # ------------------------------------------------------------------------------- pull, heartbeat

    async def pull(self, limit: int, wait_ms: int, *, reserved: int = 0) -> list[Delivery]:
        deadline = time.monotonic() + wait_ms / 1000
        if wait_ms <= 0:
            self._check()
            await self._taking.look()
        while True:
            self._check()
            await self._taking.bury()
            taken = self._taking.take(limit, reserved)
            left = deadline - time.monotonic()
            if taken or self.closed or left <= 0:
                return taken
            await self._holdings.changed(left)

    async def heartbeat(self) -> list[Delivery]:
        """Raises BrokerUnavailable when the last report to the registry did not arrive."""
        self._check()
        self._show_life()
        self._reports.send()
        return self._holdings.take_lost()

    async def announce(self, serves: Serves) -> None:
        self._check()
        await self._reports.announce(serves)

    def report(self) -> Report:
        """What the registry says of this session; as of now, but for the time of its last sign of life."""
        return self._reports.made()

    def _show_life(self) -> None:
        self._owner.keep_alive()
        self._reports.beat_ms = self._at.clock.now_ms()

    # ------------------------------------------------------------------------------------ open, append

    async def open(self, delivery: Delivery) -> Opened:
        self._check()
        now_ms = self._at.clock.now_ms()
        tenure = self._tenure(delivery)
        if tenure is None:
            return Opened(OpenOutcome.LOST, now_ms=now_ms)
        outcome, epoch = await self._opening.open(tenure, delivery)
        log = tenure.logs.logs.get(log_key(delivery.ref))
        # A copy: the caller folds what it appends, and we fold what was acknowledged.
        state = None if log is None else copy_of(log.fold)
        return Opened(outcome, epoch, state, self._is_cancelled(delivery), now_ms)

    async def append(self, batch: Sequence[Append]) -> list[bool]:
        """Refused only for what this session knows itself; whether another owner fenced it, no one says."""
        self._check()
        answers, entries, chunks = [], list[Entry](), list[Record]()
        for item in batch:
            check_append(item)
            tenure = self._tenure(item.delivery)
            written = tenure is not None and self._runs(tenure, item.delivery, item.epoch)
            answers.append(written)
            if tenure is not None and written:
                key = log_key(item.delivery.ref)
                entries += [Entry(tenure, key, event) for event in item.events]
                chunks += await self._chunks.of(item)
        try:
            await self._appender.append(entries, chunks)
        except (BrokerUnavailable, BrokerRefused) as error:
            self._at.topics.doubt({chunk.topic for chunk in chunks})
            if chunks and isinstance(error, BrokerRefused):
                # It may be a reader's own topic that takes nothing from us: the next chunks are left out.
                raise BrokerUnavailable(str(error)) from error
            raise
        return answers

    def _runs(self, tenure: Tenure, delivery: Delivery, epoch: int) -> bool:
        return tenure.runs_it(delivery, epoch) and not tenure.log(delivery).fold.ended

    def _is_cancelled(self, delivery: Delivery) -> bool:
        """A mark counts for what was published before it. Two topics have no order but time."""
        marked_ms = self._at.control.marked_ms(delivery.ref)
        return marked_ms is not None and delivery.published_ms <= marked_ms

    # ------------------------------------------------------------------------------------------ settle

    async def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        self._check()
        check_settlement(epoch, settlement)
        tenure = self._tenure(delivery)
        if tenure is None:
            return False
        if epoch and not tenure.runs_it(delivery, epoch):
            return False
        claim_of(delivery).settling = True
        try:
            settled = await self._settlements.settle(tenure, delivery, epoch, settlement)
        finally:
            claim_of(delivery).settling = False
        tenure.end_run(delivery)
        self._holdings.notify()
        return settled

    # ------------------------------------------------------------------------------------------- other

    def cancellations(self) -> AsyncIterator[RequestRef]:
        return self._at.control.cancellations()

    async def close(self) -> None:
        """Hands back what is held and leaves the group, so that it comes back at once, elsewhere."""
        if self.closed:
            return
        self.closed = True
        self._holdings.notify()
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._reports.close()
        await self._housekeeping.close()
        await self._orphans.close()
        with contextlib.suppress(BrokerError, TimeoutError):
            await asyncio.wait_for(self._let_go(list(self._holdings.tenures.values())), _GOODBYE_S)
        self._owner.stop()
        if not await self._owner.stopped(_GOODBYE_S):
            logger.debug("closed without leaving the group: the broker is away")
        await self._holdings.close()
        await self._settler.close()
        with contextlib.suppress(BrokerError, TimeoutError):
            await self._reader.close()
            await asyncio.wait_for(self._at.control.withdraw(self._name), 1.0)

    def _tenure(self, delivery: Delivery) -> Tenure | None:
        """The tenure that a delivery belongs to, as far as this session knows."""
        tenure = claim_of(delivery).tenure
        return tenure if tenure.holds(delivery) else None

    async def _let_go(self, tenures: Sequence[Tenure]) -> None:
        """Says of all that runs there that it was given up in order, and finishes what is being settled."""
        reason = "the consumer leaves" if self.closed else "moved to another consumer"
        for tenure in tenures:
            tenure.leaving = True
        await self._appender.hand_back(tenures, reason)
        await self._settler.flushed(release_s(self._lease_ms))

    async def _follow_control(self) -> None:
        """A lane that is resumed wakes a pull that waits."""
        while True:
            await self._at.control.changed()
            self._holdings.notify()

    async def _read_marks(self) -> None:
        """Before work begins on new partitions: no cancellation may be missed."""
        backoff = Backoff()
        while True:
            try:
                await self._at.control.read_to_end()
                return
            except BrokerUnavailable:
                await backoff.wait()

    def _check(self) -> None:
        if self._holdings.failure is not None:
            raise BrokerRefused(str(self._holdings.failure))

    # ----------------------------------------------------------------------------------------- making

    def _settler_parts(self) -> SettlerParts:
        at = self._at
        return SettlerParts(
            transactions=Transactions(at.clients.producer_options(), self._transactional_id),
            transactional_id=self._transactional_id,
            servers=at.clients.servers,
            membership=lambda: self._owner.membership,
            committed=self._reader.committed,
            publish=at.publisher.send,
            fatal=self._holdings.failed,
            topics_again=at.topics.again,
            exactly_once=at.settings.results == "exactly_once",
        )
