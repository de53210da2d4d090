"""How an owner ends its hold on a delivery: events first, then one transaction.

What a successor must know to complete it stands beside the events: see `Closing` and `Departure`.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.broker.contract import DeadLetter, Done, PassOn, Release, Retry, Settlement
from headrace.broker.events import Handed, Moved, Terminal
from headrace.broker.message import Delivery
from tests.support.memory_cluster import MemoryCluster
from tests.support.memory_codec import (
    ORIGIN,
    REASON,
    delayed_record,
    log_key,
    moved_record,
    moves,
    result_headers,
)
from tests.support.memory_events import Closing, Departure
from tests.support.memory_member import MemoryMember
from tests.support.memory_tenure import Tenure, claim_of
from tests.support.memory_topics import PartitionId, Record


class Settling:
    """The settlements of one session. False means that another one owns the partition now."""

    def __init__(self, cluster: MemoryCluster, member: MemoryMember) -> None:
        self._cluster, self._member = cluster, member

    async def settle(self, tenure: Tenure, delivery: Delivery, epoch: int, settlement: Settlement) -> bool:
        match settlement:
            case Done() | DeadLetter():
                return await self._conclude(tenure, delivery, settlement)
            case Release(reason):
                self._hand_back(tenure, delivery, epoch, reason)
                tenure.give_back(claim_of(delivery).offset)
                self._cluster.notify()
                return True
            case Retry(delay_ms, reason):
                self._hand_back(tenure, delivery, epoch, reason)
                record = tenure.partition.requests.at(claim_of(delivery).offset)
                due = self._now() + delay_ms
                delayed = delayed_record(record, delivery.position, delivery.published_ms, due, reason)
                return await self._complete(tenure, delivery, delays=[delayed])
            case PassOn(pool):
                return await self._pass_on(tenure, delivery, epoch, pool)

    def dead_letter(self, tenure: Tenure, offset: int, where: str, reason: str) -> tuple[str, Record]:
        names, record = self._cluster.names, tenure.partition.requests.at(offset)
        headers = {**record.headers, ORIGIN: where.encode(), REASON: reason.encode()}
        return names.dead_letters, replace(record, headers=headers, at_ms=self._now())

    # ------------------------------------------------------------------------------------- the end

    async def _conclude(self, tenure: Tenure, delivery: Delivery, settlement: Done | DeadLetter) -> bool:
        if settlement.terminal is not None:
            await self._append_terminal(tenure, delivery, settlement.terminal, settlement)
        records = self.closing_records(tenure, delivery)
        if isinstance(settlement, DeadLetter) and settlement.terminal is None:
            offset = claim_of(delivery).offset
            records.append(self.dead_letter(tenure, offset, delivery.position, settlement.reason))
        return await self._complete(tenure, delivery, records)

    async def _append_terminal(
        self, tenure: Tenure, delivery: Delivery, terminal: Terminal, settlement: Done | DeadLetter
    ) -> None:
        """The terminal record, with all that its transaction will emit beside it (see `Closing`)."""
        key = log_key(delivery.ref)
        await self._cluster.hop()
        if not tenure.entry(key).log.fold.ended:
            dead_letter = settlement.reason if isinstance(settlement, DeadLetter) else None
            closing = Closing(claim_of(delivery).offset, settlement.line, dead_letter)
            for event in settlement.events if isinstance(settlement, Done) else ():
                self._member.append_event(tenure, key, event)
            self._member.append_event(tenure, key, terminal, closing)
        await self._cluster.hop()

    def closing_records(self, tenure: Tenure, delivery: Delivery) -> list[tuple[str, Record]]:
        """What completing this very record emits. Nothing for a twin, whoever ended the request."""
        offset, closing = claim_of(delivery).offset, tenure.entry(log_key(delivery.ref)).log.closing
        if closing is None or closing.carrier != offset:
            return []
        records = []
        if closing.line is not None:
            headers = {k: v.encode() for k, v in result_headers(delivery.message, delivery.ref).items()}
            topic = delivery.message.reply_to or self._cluster.names.results
            records.append((topic, Record(closing.line, self._now(), delivery.ref.request_id, headers)))
        if closing.dead_letter is not None:
            records.append(self.dead_letter(tenure, offset, delivery.position, closing.dead_letter))
        return records

    # ------------------------------------------------------------------------------------ elsewhere

    async def _pass_on(self, tenure: Tenure, delivery: Delivery, epoch: int, pool: str) -> bool:
        """Says so in the log, makes sure that it counts, and only then hands the record over: a copy that a
        zombie sent would be run there while its successor runs the request here."""
        assert epoch > 0, "its log says that it was passed on: open it first"
        key, offset = log_key(delivery.ref), claim_of(delivery).offset
        self._hand_back(tenure, delivery, epoch, f"passed on to pool {pool!r}")
        here = tenure.partition
        log = f"{self._cluster.names.events(here.id.lane, pool)}/{here.id.number}"
        departure = Departure(offset, moves(here.requests.at(offset)) + 1, delivery.message.body_hash)
        self._member.append_event(tenure, key, Moved(epoch, pool, log), departure)
        await self._cluster.hop()
        return self._member.confirm(tenure) and await self.complete_move(tenure, delivery)

    async def complete_move(self, tenure: Tenure, delivery: Delivery) -> bool:
        """An acknowledged publish, then the offset. Who dies between them leaves a twin there."""
        await self._cluster.hop()
        log = tenure.entry(log_key(delivery.ref)).log
        assert log.departure is not None
        assert log.fold.moved is not None
        here, pool = tenure.partition, log.fold.moved.pool
        self._cluster.open_pool(pool)
        there = self._cluster.partitions[PartitionId(here.id.lane, here.id.number, pool)]
        record = replace(here.requests.at(log.departure.carrier), at_ms=self._now())
        moved = moved_record(record, delivery.position, delivery.published_ms, log.departure.moves)
        self._cluster.append(there.requests, moved)
        return await self._complete(tenure, delivery)

    def _hand_back(self, tenure: Tenure, delivery: Delivery, epoch: int, reason: str) -> None:
        if epoch:
            self._member.append_event(tenure, log_key(delivery.ref), Handed(epoch, reason))

    async def _complete(
        self,
        tenure: Tenure,
        delivery: Delivery,
        records: list[tuple[str, Record]] | None = None,
        delays: list[Record] | None = None,
    ) -> bool:
        offset = claim_of(delivery).offset
        settled = await self._member.transact(tenure, offset, records or [], delays or [])
        tenure.held.pop(offset, None)
        return settled

    def _now(self) -> int:
        return self._cluster.clock.now_ms()
