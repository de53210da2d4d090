"""A consumer: delivers the records of the partitions it owns, opens, appends, settles.

All that needs the group's consent is serialised by one lock, where a real adapter has one thread that owns
the consumer.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from headrace.broker.contract import (
    Append,
    DeadLetter,
    Done,
    Opened,
    OpenOutcome,
    Release,
    Retry,
    Settlement,
)
from headrace.broker.events import Terminal
from headrace.broker.message import Delivery, Lane, RequestRef
from tests.support.memory_cluster import MemoryCluster, Report
from tests.support.memory_codec import Undecodable, delayed_record, log_key, result_headers
from tests.support.memory_events import Closing
from tests.support.memory_member import MemoryMember
from tests.support.memory_tenure import Claim, Tenure
from tests.support.memory_topics import Record, position


class MemorySession:
    """`ConsumerSession` over a `MemoryCluster`."""

    def __init__(self, cluster: MemoryCluster, name: str, lanes: Sequence[Lane], lease_ms: int) -> None:
        self._cluster = cluster
        self._name = name
        self._lanes = tuple(lanes)
        self._lease_ms = lease_ms
        self._member = MemoryMember(cluster, name, lanes, lease_ms)
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def lease_ms(self) -> int:
        return self._lease_ms

    # ------------------------------------------------------------------------------- pull, heartbeat

    async def pull(self, limit: int, wait_ms: int) -> list[Delivery]:
        until = self._now() + wait_ms
        while True:
            seen = self._cluster.version
            async with self._lock:
                await self._member.poll()
                await self._bury_undecodable(limit)
                taken = self._take(limit)
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

    def _take(self, limit: int) -> list[Delivery]:
        """Takes by order of lanes. It awaits nothing, so a cancelled pull leaves nothing half taken."""
        taken: list[Delivery] = []
        for tenure in self._by_lane():
            for offset, decoded in tenure.fetchable(self._cluster.names):
                if len(taken) >= limit or isinstance(decoded, Undecodable):
                    break  # the fetch position passes nothing that is not buried yet
                taken.append(tenure.take(offset, decoded))
        self._report()
        return taken

    def _by_lane(self) -> list[Tenure]:
        return sorted(self._member.tenures.values(), key=lambda t: self._lanes.index(t.partition.id.lane))

    async def _bury_undecodable(self, limit: int) -> None:
        """Moves what cannot be understood to the dead letters, and its neighbours go on."""
        for tenure in list(self._member.tenures.values()):
            for offset, decoded in itertools.islice(tenure.fetchable(self._cluster.names), limit):
                if isinstance(decoded, Undecodable):
                    where = position(self._cluster.names, tenure.partition.id, offset)
                    letter = self._dead_letter(tenure, offset, where, decoded.reason)
                    await self._member.transact(tenure, offset, [letter])

    # ------------------------------------------------------------------------------------ open, append

    async def open(self, delivery: Delivery) -> Opened:
        async with self._lock:
            tenure = self._tenure(delivery)
            if tenure is None:
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
        return True

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
            settled = await self._settle(tenure, delivery, settlement)
            if entry.runner == delivery.handle:
                entry.runner = None
            self._report()
        return settled

    async def _settle(self, tenure: Tenure, delivery: Delivery, settlement: Settlement) -> bool:
        offset = _claim(delivery).offset
        if isinstance(settlement, Release):
            tenure.give_back(offset)
            self._cluster.notify()
            return True
        if isinstance(settlement, Done | DeadLetter) and settlement.terminal is not None:
            await self._append_terminal(tenure, delivery, settlement.terminal, settlement)
        records = self._closing_records(tenure, delivery)
        if isinstance(settlement, DeadLetter) and settlement.terminal is None:
            records.append(self._dead_letter(tenure, offset, delivery.position, settlement.reason))
        delays: list[Record] = []
        if isinstance(settlement, Retry):
            record, due = tenure.partition.requests.at(offset), self._now() + settlement.delay_ms
            delays.append(
                delayed_record(record, delivery.position, delivery.published_ms, due, settlement.reason)
            )
        settled = await self._member.transact(tenure, offset, records, delays)
        tenure.held.pop(offset, None)
        return settled

    async def _append_terminal(
        self, tenure: Tenure, delivery: Delivery, terminal: Terminal, settlement: Done | DeadLetter
    ) -> None:
        """The terminal record, with all that its transaction will emit beside it (see `Closing`)."""
        key = log_key(delivery.ref)
        await self._cluster.hop()
        if not tenure.entry(key).log.fold.ended:
            dead_letter = settlement.reason if isinstance(settlement, DeadLetter) else None
            closing = Closing(_claim(delivery).offset, settlement.line, dead_letter)
            self._member.append_event(tenure, key, terminal, closing)
        await self._cluster.hop()

    def _closing_records(self, tenure: Tenure, delivery: Delivery) -> list[tuple[str, Record]]:
        """What completing this very record emits. Nothing for a twin, whoever ended the request."""
        offset, closing = _claim(delivery).offset, tenure.entry(log_key(delivery.ref)).log.closing
        if closing is None or closing.carrier != offset:
            return []
        records = []
        if closing.line is not None:
            headers = {k: v.encode() for k, v in result_headers(delivery.message, delivery.ref).items()}
            topic = delivery.message.reply_to or self._cluster.names.results
            records.append((topic, Record(closing.line, self._now(), delivery.ref.request_id, headers)))
        if closing.dead_letter is not None:
            records.append(self._dead_letter(tenure, offset, delivery.position, closing.dead_letter))
        return records

    def _dead_letter(self, tenure: Tenure, offset: int, where: str, reason: str) -> tuple[str, Record]:
        names, record = self._cluster.names, tenure.partition.requests.at(offset)
        added = {"headrace-origin": where.encode(), "headrace-reason": reason.encode()}
        return names.dead_letters, replace(record, headers={**record.headers, **added})

    # ------------------------------------------------------------------------------------------- other

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
        tenure = self._member.tenures.get(_claim(delivery).partition)
        return tenure if tenure is not None and tenure.holds(delivery) else None

    def _report(self) -> None:
        """Tells the control topic what is held: the broker itself only knows what is finished."""
        held = dict.fromkeys(self._lanes, 0)
        for tenure in self._member.tenures.values():
            held[tenure.partition.id.lane] += len(tenure.held)
        self._cluster.control.reports[self._name] = Report(held, self._now(), self._lease_ms)

    def _now(self) -> int:
        return self._cluster.clock.now_ms()


def _claim(delivery: Delivery) -> Claim:
    claim = delivery.handle
    assert isinstance(claim, Claim), "a delivery of another adapter"
    return claim
