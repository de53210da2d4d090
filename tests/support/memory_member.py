"""A member of the group: what needs the group's consent, and the partitions that it owns.

In a real adapter one thread owns the consumer and polls all the time; here `pull` and `heartbeat` poll, and
the session's lock stands for that thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.broker.events import Event, Fence, Handed
from headrace.broker.message import Delivery, Lane
from tests.support.memory_cluster import MemoryCluster, Transaction
from tests.support.memory_codec import due_ms, log_key
from tests.support.memory_events import Beside, event_record, highest_epoch, restore
from tests.support.memory_group import Fencing
from tests.support.memory_tenure import Tenure
from tests.support.memory_topics import Committed, Partition, PartitionId, Record

FENCE_EVERY_MS = 5_000


class MemoryMember:
    """Polls, restores, commits. `tenures` are the partitions that it believes to own."""

    def __init__(
        self, cluster: MemoryCluster, name: str, lanes: Sequence[Lane], lease_ms: int, pool: str
    ) -> None:
        self.tenures: dict[PartitionId, Tenure] = {}
        self._cluster = cluster
        self._name = name
        self._lanes = tuple(lanes)
        self._lease_ms = lease_ms
        self._pool = pool
        self._id = ""
        self._generation = -1
        self._lost: list[Delivery] = []
        self._left = False
        self._join()

    def _join(self) -> None:
        self._id = self._cluster.group.join(self._name, self._lanes, self._lease_ms, self._pool)
        self._cluster.notify()

    def leave(self) -> None:
        """For good: what is held comes back at once, elsewhere."""
        self._left = True
        for tenure in self.tenures.values():
            self._hand_back(tenure, "left")
        self._cluster.group.leave(self._id)
        self._cluster.notify()

    def take_lost(self) -> list[Delivery]:
        """Deliveries that went with their partitions since the last call."""
        lost, self._lost = self._lost, []
        return lost

    async def poll(self) -> None:
        """Heartbeat, then whatever the group decided: let go, restore what is new, forward what is due."""
        for partition in self._cluster.group.leaving(self._id):
            if partition in self.tenures:
                self._hand_back(self.tenures[partition], "moved to another consumer")
        assignment = self._cluster.group.poll(self._id)
        if assignment is None:
            # Our session timed out: drop all without commit, and come back as a new member.
            self._drop(set(self.tenures))
            if self._left:
                return
            self._join()
            assignment = self._cluster.group.poll(self._id)
            assert assignment is not None
        self._generation = assignment.generation
        if assignment.partitions != set(self.tenures):
            self._cluster.notify()  # what we let go of is for somebody who may be waiting
        self._drop(set(self.tenures) - assignment.partitions)
        for partition in sorted(assignment.partitions - set(self.tenures)):
            await self._restore(self._cluster.partitions[partition])
        for tenure in list(self.tenures.values()):
            await self._forward_due(tenure)

    def _drop(self, partitions: set[PartitionId]) -> None:
        for partition in partitions:
            self._lost.extend(self.tenures.pop(partition).held.values())

    def _hand_back(self, tenure: Tenure, reason: str) -> None:
        """Says of all that runs there that it was given up in order. Whoever may do so no more writes it in
        vain: the next owner's fence stands before it."""
        for delivery in tenure.held.values():
            entry = tenure.entry(log_key(delivery.ref))
            if entry.runner == delivery.handle:
                self.append_event(tenure, log_key(delivery.ref), Handed(entry.epoch, reason))

    async def _restore(self, partition: Partition) -> None:
        """Fence, then read. The order of these steps is the protocol; each hop is a chance for a zombie."""
        self._cluster.abort_open(partition.id)  # stable offsets
        committed, epoch = partition.committed, partition.committed.epoch + 1
        while True:
            await self._cluster.hop()
            committed = replace(committed, epoch=epoch)
            if not self._commit(partition, committed):
                return  # lost again already; the next poll will tell
            await self._cluster.hop()
            fence = self._cluster.append(partition.events, event_record(None, Fence(epoch), self._now()))
            await self._cluster.hop()
            seen = highest_epoch(partition.events, fence)
            if seen < epoch:
                break
            epoch = seen + 1  # the commit's metadata was lost: take one that is really higher
        self.tenures[partition.id] = Tenure(
            partition, epoch, fence, committed, epoch, self._now(), next=committed.base
        )

    async def _forward_due(self, tenure: Tenure) -> None:
        """Publishes what waited long enough to its lane again, then completes the delay.

        Two steps: an owner that dies between them leaves a second copy, a twin, which is harmless.
        """
        partition = tenure.partition
        for offset, record in list(partition.delayed()):
            if due_ms(record) <= self._now():
                self._cluster.append(partition.requests, replace(record, at_ms=self._now()))
                await self._cluster.hop()
                self._commit_delays(partition, partition.delays_committed.finish(offset))

    def repeat_fences(self) -> None:
        """For readers that start later, from a time: they must see the epoch in force."""
        for tenure in self.tenures.values():
            if self._now() - tenure.fenced_ms >= FENCE_EVERY_MS:
                self.append_event(tenure, None, Fence(tenure.epoch))
                tenure.fenced_ms = self._now()

    async def epoch_of_open(self, tenure: Tenure, key: str) -> int | None:
        """The epoch to run under. The first time it is that of the partition: the fence already stands.

        Opened again, the request alone gets a new one, so that its neighbours keep theirs: committed first
        (only the rightful owner can, hence no two owners ever hold the same number), then a fence with the
        request's key, then the read. None: the commit was refused.
        """
        entry = tenure.entry(key)
        if entry.epoch == 0:
            return tenure.epoch
        epoch = tenure.top_epoch + 1
        await self._cluster.hop()
        if not self._commit(tenure.partition, replace(tenure.committed, epoch=epoch)):
            return None
        tenure.top_epoch = epoch
        await self._cluster.hop()
        fence = self.append_event(tenure, key, Fence(epoch))
        await self._cluster.hop()
        entry.log = restore(tenure.partition.events, key, fence + 1)
        return epoch

    def append_event(self, tenure: Tenure, key: str | None, event: Event, beside: Beside = None) -> int:
        offset = self._cluster.append(tenure.partition.events, event_record(key, event, self._now(), beside))
        if key is not None:
            tenure.entry(key).log.read(event, beside)
        return offset

    def confirm(self, tenure: Tenure) -> bool:
        """Whether the partition is still ours, and so all that we appended before is no zombie's: who takes
        it over must be assigned it first, and fence then."""
        return self._commit(tenure.partition, replace(tenure.committed, epoch=tenure.top_epoch))

    async def transact(
        self,
        tenure: Tenure,
        offset: int,
        records: Sequence[tuple[str, Record]],
        delays: Sequence[Record] = (),
    ) -> bool:
        """Lines, letters, delays and the offset, all or nothing. False: another one owns the partition."""
        committed = tenure.finish(offset)
        while True:
            await self._cluster.hop()
            transaction = Transaction(tenure.partition, committed, records, delays)
            if not self._begin(transaction):
                return False
            await self._cluster.hop()
            if self._cluster.end(transaction):
                tenure.committed = committed
                return True

    def _begin(self, transaction: Transaction) -> bool:
        return self._fenced(lambda: self._cluster.begin(self._id, self._generation, transaction))

    def _commit_delays(self, partition: Partition, committed: Committed) -> bool:
        return self._fenced(
            lambda: self._cluster.commit_delays(self._id, self._generation, partition, committed)
        )

    def _commit(self, partition: Partition, committed: Committed) -> bool:
        return self._fenced(lambda: self._cluster.commit(self._id, self._generation, partition, committed))

    def _fenced(self, attempt: Callable[[], Fencing]) -> bool:
        """One request that the group fences. A rebalance that left us in the group only asks to try again:
        what we hold stays ours until our next poll lets go of it."""
        fencing = attempt()
        if fencing is Fencing.ILLEGAL_GENERATION:
            self._generation = self._cluster.group.generation
            fencing = attempt()
        return fencing is Fencing.ACCEPTED

    def _now(self) -> int:
        return self._cluster.clock.now_ms()
