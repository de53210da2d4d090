"""A consumer: delivers the records of the partitions it owns, opens, appends, settles.

All that needs the group's consent is serialised by one lock, where a real adapter has one thread that owns
the consumer.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from headrace.broker.contract import (
    Append,
    DeadLetter,
    Done,
    Opened,
    OpenOutcome,
    Serves,
    Settlement,
)
from headrace.broker.events import Terminal
from headrace.broker.lanes import Preference, Share
from headrace.broker.message import Delivery, Lane, RequestRef
from tests.support.memory_cluster import MemoryCluster, Report
from tests.support.memory_codec import CHUNK, KIND, Undecodable, log_key, result_headers
from tests.support.memory_member import MemoryMember
from tests.support.memory_settling import Settling
from tests.support.memory_tenure import Tenure, claim_of
from tests.support.memory_topics import Record, position


class MemorySession:
    """`ConsumerSession` over a `MemoryCluster`."""

    def __init__(
        self, cluster: MemoryCluster, name: str, lanes: Sequence[Lane], lease_ms: int, pool: str
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._lanes = tuple(lanes)
        self._lease_ms = lease_ms
        self._pool = pool
        self._serves: Serves | None = None
        self._preference = Preference(lanes)
        self._member = MemoryMember(cluster, name, lanes, lease_ms, pool)
        self._settling = Settling(cluster, self._member)
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    # ------------------------------------------------------------------------------- pull, heartbeat

    async def pull(self, limit: int, wait_ms: int, *, reserved: int = 0) -> list[Delivery]:
        until = self._now() + wait_ms
        while True:
            seen = self._cluster.version
            async with self._lock:
                await self._member.poll()
                await self._bury_undecodable(limit)
                taken = self._take(limit, reserved)
            if taken or self._now() >= until or self._closed:
                return taken
            # A poll that waits is a sign of life, and time alone may bring something.
            alarms = [until, self._now() + max(1, self._lease_ms // 4)]
            due = self._cluster.next_due_ms()
            await self._cluster.changed(seen, min([*alarms, *([] if due is None else [due])]))

    async def heartbeat(self) -> list[Delivery]:
        async with self._lock:
            await self._member.poll()
            self._member.repeat_fences()
            self._report()
            return self._member.take_lost()

    def _take(self, limit: int, reserved: int) -> list[Delivery]:
        """Takes by order of lanes. It awaits nothing, so a cancelled pull leaves nothing half taken."""
        plan = self._preference.plan(limit, reserved)
        taken: list[Delivery] = []
        for share in plan:
            bound = limit if share.lane is Lane.INTERACTIVE else limit - reserved
            taken += self._take_share(share, bound - len(taken))
        self._preference.taken(Counter(delivery.message.lane for delivery in taken), plan)
        self._report()
        return taken

    def _take_share(self, share: Share, room: int) -> list[Delivery]:
        taken: list[Delivery] = []
        for tenure in self._member.tenures.values():
            if tenure.partition.id.lane is not share.lane or self._cluster.is_paused(tenure.partition.id):
                continue
            for offset, decoded in tenure.fetchable(self._cluster.names):
                if len(taken) >= min(share.at_most, room) or isinstance(decoded, Undecodable):
                    break  # the fetch position passes nothing that is not buried yet
                taken.append(tenure.take(offset, decoded))
        return taken

    async def _bury_undecodable(self, limit: int) -> None:
        """Moves what cannot be understood to the dead letters, and its neighbours go on."""
        for tenure in list(self._member.tenures.values()):
            for offset, decoded in itertools.islice(tenure.fetchable(self._cluster.names), limit):
                if isinstance(decoded, Undecodable):
                    where = position(self._cluster.names, tenure.partition.id, offset)
                    letter = self._settling.dead_letter(tenure, offset, where, decoded.reason)
                    await self._member.transact(tenure, offset, [letter])

    # ------------------------------------------------------------------------------------ open, append

    async def open(self, delivery: Delivery) -> Opened:
        async with self._lock:
            tenure = self._tenure(delivery)
            if tenure is None:
                return Opened(OpenOutcome.LOST, now_ms=self._now())
            if tenure.moved_away(delivery):
                await self._settling.complete_move(tenure, delivery)
                return Opened(OpenOutcome.LOST, now_ms=self._now())
            outcome, epoch = tenure.judge(delivery, self._cluster.names), None
            if outcome is OpenOutcome.RUN:
                epoch = await self._member.epoch_of_open(tenure, log_key(delivery.ref))
                # What a zombie wrote after the fence is void, but a terminal record may stand before it.
                outcome = OpenOutcome.LOST if epoch is None else tenure.judge(delivery, self._cluster.names)
            if outcome is OpenOutcome.RUN and epoch is not None:
                tenure.start(delivery, epoch)
            # A copy: the caller folds what it appends, and we fold what was acknowledged.
            state = copy.deepcopy(tenure.entry(log_key(delivery.ref)).log.fold)
        return Opened(outcome, epoch or 0, state, self._is_cancelled(delivery), self._now())

    async def append(self, batch: Sequence[Append]) -> list[bool]:
        await self._cluster.hop()
        answers = [self._append(item) for item in batch]
        await self._cluster.hop()
        return answers

    def _append(self, item: Append) -> bool:
        """Refused only for what this session knows itself; whether another owner fenced it, no one says."""
        tenure = self._tenure(item.delivery)
        if tenure is None or not self._runs(tenure, item.delivery, item.epoch):
            return False
        for event in item.events:
            assert event.epoch == item.epoch, "an event carries the epoch of its writer"
            assert not isinstance(event, Terminal), "terminal records go through `settle`"
            self._member.append_event(tenure, log_key(item.delivery.ref), event)
        self._emit_chunks(item)
        return True

    def _emit_chunks(self, item: Append) -> None:
        """Beside the transactions, so nothing fences them, and who takes the request over says them again."""
        message, ref = item.delivery.message, item.delivery.ref
        if message.reply_to is None or not message.stream:
            return
        headers = {**result_headers(message, ref), KIND: CHUNK}
        encoded = {name: value.encode() for name, value in headers.items()}
        for chunk in item.chunks:
            record = Record(chunk, self._now(), ref.request_id, encoded)
            self._cluster.append(self._cluster.topic(message.reply_to), record)

    def _runs(self, tenure: Tenure, delivery: Delivery, epoch: int) -> bool:
        entry = tenure.entry(log_key(delivery.ref))
        return entry.runner == delivery.handle and entry.epoch == epoch and not entry.log.fold.ended

    def _is_cancelled(self, delivery: Delivery) -> bool:
        """A mark counts for what was published before it. Two topics have no order but time."""
        marked_ms = self._cluster.control.marks.get(log_key(delivery.ref))
        return marked_ms is not None and delivery.published_ms <= marked_ms

    # ------------------------------------------------------------------------------------------ settle

    async def settle(self, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        async with self._lock:
            tenure = self._tenure(delivery)
            if tenure is None:
                return False
            terminal = settlement.terminal if isinstance(settlement, Done | DeadLetter) else None
            assert terminal is None or terminal.epoch == epoch, "a terminal record carries its own epoch"
            entry = tenure.entry(log_key(delivery.ref))
            if epoch and (entry.runner != delivery.handle or entry.epoch != epoch):
                return False
            settled = await self._settling.settle(tenure, delivery, epoch, settlement)
            if entry.runner == delivery.handle:
                entry.runner = None
            self._report()
        return settled

    # ------------------------------------------------------------------------------------------- other

    async def announce(self, serves: Serves) -> None:
        await self._cluster.hop()
        self._serves = serves
        self._report()

    def cancellations(self) -> AsyncIterator[RequestRef]:
        return self._follow_control(len(self._cluster.control.log))

    async def _follow_control(self, start: int) -> AsyncIterator[RequestRef]:
        while True:
            seen, log = self._cluster.version, self._cluster.control.log
            while start < len(log):
                start += 1
                yield log[start - 1]
            await self._cluster.changed(seen)

    async def close(self) -> None:
        """Leaves the group: what is still held comes back at once, elsewhere."""
        self._closed = True
        self._member.leave()
        self._cluster.control.reports.pop(self._name, None)
        self._cluster.notify()

    def _tenure(self, delivery: Delivery) -> Tenure | None:
        """The tenure that a delivery belongs to, as far as this session knows."""
        tenure = self._member.tenures.get(claim_of(delivery).partition)
        return tenure if tenure is not None and tenure.holds(delivery) else None

    def _report(self) -> None:
        """Tells the control topic what is held: the broker itself only knows what is finished."""
        if self._closed:
            return
        held = dict.fromkeys(self._lanes, 0)
        for tenure in self._member.tenures.values():
            held[tenure.partition.id.lane] += len(tenure.held)
        report = Report(held, self._now(), self._lease_ms, self._pool, self._lanes, self._serves)
        self._cluster.control.reports[self._name] = report

    def _now(self) -> int:
        return self._cluster.clock.now_ms()
