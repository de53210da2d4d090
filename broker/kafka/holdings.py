"""The partitions of one session: taken over, filled, given up. Lives on the event loop.

assigned ──► restoring ──► held ──► revoked (flush, hand back) ──► gone
                 │           └────► lost (nothing is written any more) ──► gone
                 └─ cancelled when it is revoked or lost meanwhile
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerError, BrokerRefused, BrokerUnavailable
from headrace.broker.kafka.bridge import resolve
from headrace.broker.kafka.commits import Committed
from headrace.broker.kafka.delays import DelayTenure
from headrace.broker.kafka.flow import Fill, paused_partitions
from headrace.broker.kafka.owner_thread import OwnerThread, Records
from headrace.broker.kafka.places import delay_of
from headrace.broker.kafka.restore import Restorer
from headrace.broker.kafka.rhythm import Rhythm
from headrace.broker.kafka.tenure import Tenure
from headrace.broker.kafka.topics import LaneTopics
from headrace.broker.message import Delivery, Lane
from headrace.broker.names import Names

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HoldingsParts:
    """What holdings need of their session.

    `before_work`: awaited before anything is delivered from new partitions. `let_go`: hands tenures back in
    order and returns once all that was under way for them is committed.
    """

    lanes: Sequence[LaneTopics]
    names: Names
    before_work: Callable[[], Awaitable[object]]
    let_go: Callable[[Sequence[Tenure]], Awaitable[object]]


class Holdings:
    """Hears of the group through `OwnerEvents`. `failure`: why the session has ended."""

    def __init__(self, parts: HoldingsParts) -> None:
        self.tenures: dict[TopicPartition, Tenure] = {}
        self.delays: dict[TopicPartition, DelayTenure] = {}
        self.failure: BrokerRefused | None = None
        self._parts = parts
        self._owner: OwnerThread | None = None
        self._restorer: Restorer | None = None
        self._requests = {lane.requests: lane for lane in parts.lanes}
        self._delayed = {topic: lane for lane in parts.lanes for topic in lane.delayed}
        self._restoring: dict[asyncio.Task[None], set[TopicPartition]] = {}
        self._letting_go: set[asyncio.Task[None]] = set()
        self._paused: set[TopicPartition] = set()
        self._resting: set[TopicPartition] = set()  # delays that are not looked at now
        self._lost: list[Delivery] = []
        self._waiters: set[asyncio.Future[None]] = set()

    def attach(self, owner: OwnerThread, restorer: Restorer) -> None:
        self._owner, self._restorer = owner, restorer

    # --------------------------------------------------------------------------------- for the session

    async def changed(self, timeout_s: float) -> None:
        """Returns once there may be something new to take, or after the time."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait({waiter}, timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            resolve(waiter, None)

    @property
    def settled(self) -> bool:
        """Whether this is a member, and all that was assigned to it is restored."""
        assert self._owner is not None
        return self._owner.joined and not self._restoring

    @property
    def behind(self) -> bool:
        """Whether something stands in our partitions that was not fetched yet, as far as we know."""
        return bool(self._restoring) or any(tenure.behind for tenure in self.tenures.values())

    def of_lane(self, lane: Lane) -> list[Tenure]:
        """Those of a lane that stay."""
        return [t for t in self.tenures.values() if t.topics.lane is lane and not t.leaving]

    def take_lost(self) -> list[Delivery]:
        """Deliveries that went with their partitions since the last call."""
        lost, self._lost = self._lost, []
        return lost

    def lose(self, delivery: Delivery) -> None:
        """One that was taken from its caller."""
        self._lost.append(delivery)

    def held(self) -> dict[Lane, int]:
        held = {lane.lane: 0 for lane in self._parts.lanes}
        for tenure in self.tenures.values():
            held[tenure.topics.lane] += len(tenure.held)
        return held

    def flow(self) -> None:
        """Pauses and resumes, after something was fetched or taken."""
        fills = {
            partition: Fill(len(t.buffer), t.buffer.num_bytes, t.topics.lane is Lane.INTERACTIVE)
            for partition, t in self.tenures.items()
            if t.buffer
        }
        fills |= {
            partition: Fill(len(d.buffer), d.buffer.num_bytes)
            for partition, d in self.delays.items()
            if d.buffer
        }
        self._pause_only(paused_partitions(fills, self._paused) | self._resting, soon=True)

    def tick(self) -> None:
        """Time has gone by: delays are looked at, or not any more."""
        now = time.monotonic()
        for delay in self.delays.values():
            delay.rhythm.tick(now)
        resting = {partition for partition, delay in self.delays.items() if delay.rhythm.rests}
        wanted = (self._paused - self._resting) | resting
        self._resting = resting
        self._pause_only(wanted, soon=False)

    async def close(self) -> None:
        tasks = [*self._restoring, *self._letting_go]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.lost()

    # ------------------------------------------------------------------------------- from the owner

    def assigned(self, partitions: frozenset[TopicPartition], member: str, turn: int) -> None:
        restore = self._restore(partitions, member, turn)
        task = asyncio.create_task(restore, name="headrace kafka restore")
        self._restoring[task] = set(partitions)
        task.add_done_callback(self._restored)

    def revoked(self, partitions: frozenset[TopicPartition], release: Callable[[], None]) -> None:
        self._stop_restoring(partitions)
        task = asyncio.create_task(self._let_go(partitions, release), name="headrace kafka revoke")
        self._letting_go.add(task)
        task.add_done_callback(self._letting_go.discard)

    def lost(self) -> None:
        for task in self._restoring:
            task.cancel()
        self._drop(list(self.tenures) + list(self.delays))

    def records(self, records: Records) -> None:
        for partition, fetched in records.items():
            tenure = self._holder(partition)
            if tenure is not None:
                tenure.fetched(fetched)
            if isinstance(tenure, DelayTenure):
                tenure.rhythm.found(time.monotonic())
        self.flow()
        self.notify()

    def failed(self, error: BrokerRefused) -> None:
        self.failure = error
        self.lost()
        self.notify()

    # -------------------------------------------------------------------------------------- taking over

    async def _restore(self, partitions: frozenset[TopicPartition], member: str, turn: int) -> None:
        assert self._restorer is not None
        wanted = self._restoring_now()
        requests = [(self._requests[p.topic], p.partition) for p in partitions if p.topic in self._requests]
        delayed = [p for p in partitions if p.topic in self._delayed]
        together = self._restorer.restore(requests, delayed, member, turn)
        found, _ = await asyncio.gather(_unless_stuck(together), self._parts.before_work())
        if found is None:
            self._restore_apart(sorted(wanted), member, turn)
            return
        tenures, commits = found
        for tenure in tenures:
            if tenure.partition in wanted:
                self._take(self.tenures, tenure.partition, tenure, tenure.committed, member)
        for partition, committed in commits.items():
            if partition in wanted:
                delay = self._delay_tenure(partition, committed, member)
                self._take(self.delays, partition, delay, committed, member)
        self.notify()

    def _restore_apart(self, partitions: Sequence[TopicPartition], member: str, turn: int) -> None:
        """One that nobody leads, or whose topic somebody deleted, must not keep the others from being taken:
        each half by itself, until it is alone."""
        half = (len(partitions) + 1) // 2
        for some in (partitions[:half], partitions[half:]):
            if some:
                self.assigned(frozenset(some), member, turn)

    def _delay_tenure(self, partition: TopicPartition, committed: Committed, member: str) -> DelayTenure:
        names, found = self._parts.names, delay_of(self._parts.names, partition.topic)
        assert found is not None, partition
        rhythm = Rhythm(found[0].ms / 1000, time.monotonic())
        return DelayTenure(self._delayed[partition.topic], partition, names, committed, member, rhythm)

    def _restoring_now(self) -> set[TopicPartition]:
        """The partitions of the task that runs; those revoked meanwhile leave the set."""
        task = asyncio.current_task()
        assert task is not None
        return self._restoring[task]

    def _take(
        self,
        there: dict[TopicPartition, Tenure] | dict[TopicPartition, DelayTenure],
        partition: TopicPartition,
        tenure: Tenure | DelayTenure,
        committed: Committed,
        member: str,
    ) -> None:
        assert self._owner is not None
        there[partition] = tenure  # type: ignore[assignment]  # the caller pairs them

        def begin(consumer: KafkaConsumer) -> None:
            if partition in consumer.assignment():
                consumer.seek(partition, committed.base)
                consumer.resume(partition)

        self._owner.do(member, begin)

    def _restored(self, task: asyncio.Task[None]) -> None:
        self._restoring.pop(task, None)
        self.notify()
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        logger.error("taking partitions over failed: %s", error)
        refused = error if isinstance(error, BrokerRefused) else BrokerRefused(f"taking over failed: {error}")
        self.failed(refused)

    def _stop_restoring(self, partitions: Iterable[TopicPartition]) -> None:
        for task, restoring in self._restoring.items():
            restoring.difference_update(partitions)
            if not restoring:
                task.cancel()

    # ----------------------------------------------------------------------------------------- giving up

    async def _let_go(self, partitions: frozenset[TopicPartition], release: Callable[[], None]) -> None:
        """A last word may take longer than the membership lasts. What has come back to this session by then
        is another time with the partition, and stays."""
        tenures = [self.tenures[partition] for partition in partitions if partition in self.tenures]
        ending = [(partition, self._holder(partition)) for partition in partitions]
        try:
            await self._parts.let_go(tenures)
        except BrokerError as error:
            logger.warning("partitions were given up without a last word: %s", error)
        finally:
            self._drop([partition for partition, one in ending if self._holder(partition) is one])
            release()
            self.notify()

    def _holder(self, partition: TopicPartition) -> Tenure | DelayTenure | None:
        return self.tenures.get(partition) or self.delays.get(partition)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._paused.discard(partition)
            self._resting.discard(partition)
            tenure = self.tenures.pop(partition, None)
            if tenure is not None:
                tenure.gone = True
                self._lost += tenure.held.values()
            delay = self.delays.pop(partition, None)
            if delay is not None:
                delay.gone = True

    def _pause_only(self, wanted: set[TopicPartition], *, soon: bool) -> None:
        assert self._owner is not None
        pause, resume = wanted - self._paused, self._paused - wanted
        self._paused = wanted
        if not pause and not resume:
            return
        held: list[Tenure | DelayTenure] = [*self.tenures.values(), *self.delays.values()]

        def switch(consumer: KafkaConsumer) -> None:
            mine = consumer.assignment()
            consumer.pause(*(pause & mine))
            consumer.resume(*(resume & mine))

        self._owner.do(held[0].member, switch, soon=soon)


async def _unless_stuck(restore: Awaitable[T]) -> T | None:
    """None: the broker has not let us take all of these for long."""
    try:
        return await restore
    except BrokerUnavailable as error:
        logger.warning("partitions cannot be taken over together: %s", error)
        return None
