"""The thread that owns the group's consumer. Nobody else touches it.

    event loop                     owner thread                        kafka-python's I/O thread
    ──────────                     ────────────                        ─────────────────────────
    do(…), keep_alive()  ──queue──► between two polls
    records(…)           ◄─────────  poll, again and again
    assigned, revoked    ◄────────────────────────────────────────────  rebalance listener
    release(…)           ───event──────────────────────────────────────►  awaits it, then lets go

It polls whatever the loop does, and stops only when the lease is over: kafka-python's heartbeats would keep
a process in the group whose event loop hangs, so a consumer that was not kept alive for a lease leaves. It
comes back with the next sign of life. A membership that was lost is never gone on with: consumer and assignor
are discarded, since the assignor would go on claiming the old partitions.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import kafka.errors as ke
from kafka import KafkaConsumer
from kafka.coordinator.base import MemberState
from kafka.structs import TopicPartition

from headrace.broker.errors import BrokerRefused
from headrace.broker.kafka.assignor import MembershipLost
from headrace.broker.kafka.bridge import tell
from headrace.broker.kafka.clients import ConsumerRecord
from headrace.broker.kafka.failures import translate
from headrace.broker.kafka.rebalancing import RebalanceListener

logger = logging.getLogger(__name__)

Membership: TypeAlias = Any  # kafka-python's ConsumerGroupMetadata
Records: TypeAlias = Mapping[TopicPartition, Sequence[ConsumerRecord]]

_POLL_MS = 20
_IDLE_POLL_MS = 200  # a poll takes milliseconds of CPU; records end it at once, calls do not
_IDLE_AFTER_S = 1.0
_REBALANCE_MS = 50
_METADATA_S = 2.0
_MOST_RECORDS = 500  # in one poll
_PAUSE_S = 0.1  # after a failure
_PASSING = (ke.RetriableError, ke.KafkaConnectionError, OSError)


class OwnerEvents(Protocol):
    """What the thread tells; all of it is called on the event loop, in the order in which it happened."""

    def assigned(self, partitions: frozenset[TopicPartition], member: str, turn: int) -> None:
        """Under this membership; they are paused until somebody resumes them. `turn` tells this assignment
        from others of the same partitions, see `OwnerThread.ours`."""

    def revoked(self, partitions: frozenset[TopicPartition], release: Callable[[], None]) -> None:
        """In order: flush and commit, then call `release`. Who takes too long has lost them, and all others:
        a generation in which they are somebody else's must not fence what is still written for them here."""

    def lost(self) -> None:
        """The membership is gone, and all partitions with it."""

    def records(self, records: Records) -> None: ...

    def failed(self, error: BrokerRefused) -> None:
        """For good: the thread has ended."""


@dataclass(frozen=True, slots=True)
class OwnerOptions:
    """`make`: a new consumer with a new assignor. `lease_s`: without a sign of life it leaves after that.
    `release_s`: how long partitions that are revoked are waited for."""

    make: Callable[[], KafkaConsumer]
    topics: Sequence[str]
    servers: str
    lease_s: float
    release_s: float


class OwnerThread:
    def __init__(self, options: OwnerOptions, events: OwnerEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._options, self._events, self._loop = options, events, loop
        self._calls: queue.SimpleQueue[tuple[str, Callable[[KafkaConsumer], None]]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._ended = asyncio.Event()
        self._signs = threading.Event()  # of life
        self._alive_s = time.monotonic()
        self._membership: Membership | None = None
        self._joined = False
        self._turn = 0  # counts assignments
        self._turns: dict[TopicPartition, int] = {}
        self._was_silent = False
        self._busy_at = time.monotonic()  # it had something to do
        self._thread = threading.Thread(target=self._run, name="headrace kafka owner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # ------------------------------------------------------------------- called from the event loop

    @property
    def membership(self) -> Membership | None:
        """The last snapshot under which commits are fenced; None while there is no valid one."""
        return self._membership

    @property
    def joined(self) -> bool:
        """Whether all that was assigned to this member was told."""
        return self._joined and self._membership is not None

    def keep_alive(self) -> None:
        self._alive_s = time.monotonic()
        self._signs.set()

    def do(self, member: str, call: Callable[[KafkaConsumer], None], *, soon: bool = True) -> None:
        """Has `call` run between two polls, if this membership still stands then; else it is dropped.
        `soon`: more such calls may follow, so polls are short for a while."""
        self._calls.put((member, call))
        if soon:
            self._busy_at = time.monotonic()

    def join_again(self) -> None:
        """Has the group deal its partitions anew; each member keeps what stays with it."""
        if (membership := self._membership) is not None:
            self.do(membership.member_id, lambda consumer: consumer._coordinator.request_rejoin())

    def stop(self) -> None:
        """Leaves the group, without another word about its partitions, and ends."""
        self._stopped.set()
        self._signs.set()

    async def stopped(self, timeout_s: float) -> bool:
        """Waits for the end of the thread, not for ever."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    # ------------------------------------------------------------------------------- on the thread

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._be_a_member()
                if not self._stopped.is_set():
                    why = "it was thrown out" if self._lease_runs() else "it gave no sign of life for a lease"
                    logger.warning("the consumer is no member of its group any more: %s", why)
                self._membership = None
                tell(self._loop, self._events.lost)
                self._await_sign()
        except Exception as error:
            self._membership = None
            if not isinstance(error, BrokerRefused):
                logger.exception("the thread of the consumer failed")
                error = BrokerRefused(f"the consumer failed: {type(error).__name__}: {error}")
            tell(self._loop, self._events.failed, error)
        finally:
            tell(self._loop, self._ended.set)

    def _be_a_member(self) -> None:
        """From joining until the membership is lost, given up for want of signs of life, or ended."""
        consumer = self._make()
        if consumer is None:
            return
        listener = RebalanceListener(self, consumer, self._options.release_s)
        try:
            self._join(consumer, listener)
            while not self._stopped.is_set() and not listener.lost and self._lease_runs():
                self._do_calls(consumer)
                self._poll(consumer, listener)
        finally:
            listener.closing = True
            self._turns.clear()
            self._close(consumer)

    def _join(self, consumer: KafkaConsumer, listener: RebalanceListener) -> None:
        """Who leads the group deals out what it knows: that should be all from the first time on. (The public
        `partitions_for_topic` would ask for all topics of the cluster.)"""
        topics = list(self._options.topics)
        consumer.subscribe(topics=topics, listener=listener)
        deadline = time.monotonic() + _METADATA_S
        known = consumer._cluster.partitions_for_topic
        while any(known(topic) is None for topic in topics) and time.monotonic() < deadline:
            self._stopped.wait(0.002)

    def _make(self) -> KafkaConsumer | None:
        try:
            return self._options.make()
        except (ke.KafkaError, OSError) as error:
            self._wait_out(error)
            return None

    def _poll(self, consumer: KafkaConsumer, listener: RebalanceListener) -> None:
        # A poll that ends in the middle of a rebalance throws away what the group answers before the next.
        try:
            records = consumer.poll(timeout_ms=self._patience_ms(), max_records=_MOST_RECORDS)
            if listener.lost:
                return
            self.look(consumer)
            _unstick(consumer)
            self._check_fenced(consumer)
        except MembershipLost:
            listener.lost = True
            return
        except (ke.KafkaError, OSError) as error:
            if not listener.lost:  # it raised on purpose, so that kafka-python does not join again
                self._wait_out(error)
            return
        if records:
            self._busy_at = time.monotonic()
            tell(self._loop, self._events.records, records)

    def _patience_ms(self) -> int:
        if not self._joined:
            return _REBALANCE_MS
        return _POLL_MS if time.monotonic() - self._busy_at < _IDLE_AFTER_S else _IDLE_POLL_MS

    def _do_calls(self, consumer: KafkaConsumer) -> None:
        while not self._calls.empty():
            member, call = self._calls.get()
            if consumer.group_metadata().member_id != member:
                continue
            try:
                call(consumer)
            except (ke.KafkaError, OSError, ValueError, AssertionError) as error:
                # Of a partition that was taken away meanwhile; the listener has told so.
                logger.debug("a call on the consumer failed: %s", error)

    def _check_fenced(self, consumer: KafkaConsumer) -> None:
        """A twin took over this static member. kafka-python's heartbeat hears of it, stops, and tells nobody:
        it would poll for ever."""
        coordinator = consumer._coordinator
        silent = (
            coordinator.group_instance_id is not None
            and coordinator.stable()
            and not coordinator.need_rejoin()
            and not coordinator._heartbeat_enabled
        )
        if silent and self._was_silent:
            raise ke.FencedInstanceIdError()
        self._was_silent = silent

    def look(self, consumer: KafkaConsumer) -> None:
        """Takes a new snapshot of the membership. One without a generation would be accepted unfenced."""
        now = consumer.group_metadata()
        self._membership = now if now.generation_id >= 0 and now.member_id else None
        # In the middle of a rebalance it has a generation, but does not know yet what it owns.
        self._joined = now.state is MemberState.STABLE

    def look_away(self) -> None:
        """Nothing more is committed under this membership."""
        self._membership = None

    def _wait_out(self, error: BaseException) -> None:
        """Raises BrokerRefused for what does not pass by itself."""
        translated = translate(error, self._options.servers)
        if isinstance(translated, BrokerRefused) and not isinstance(error, _PASSING):
            raise translated from error
        logger.debug("polling failed, will be repeated: %s", error)
        self._stopped.wait(_PAUSE_S)

    def _lease_runs(self) -> bool:
        return time.monotonic() - self._alive_s <= self._options.lease_s

    def _await_sign(self) -> None:
        while not self._stopped.is_set() and not self._lease_runs():
            self._signs.clear()
            if not self._lease_runs():
                self._signs.wait()

    def _close(self, consumer: KafkaConsumer) -> None:
        try:
            consumer.close(autocommit=False, timeout_ms=1_000)
        except (ke.KafkaError, OSError, RuntimeError) as error:
            logger.debug("leaving the group failed, the session will lapse: %s", error)

    def ours(self, partitions: Iterable[TopicPartition], turn: int) -> frozenset[TopicPartition]:
        """Those that stayed ours since that assignment. Only the owner thread can tell for sure: nothing
        moves between its polls."""
        return frozenset(partition for partition in partitions if self._turns.get(partition) == turn)

    def tell_assigned(self, partitions: frozenset[TopicPartition], member: str) -> None:
        self._turn, self._busy_at = self._turn + 1, time.monotonic()
        self._turns |= dict.fromkeys(partitions, self._turn)
        tell(self._loop, self._events.assigned, partitions, member, self._turn)

    def tell_revoked(self, partitions: frozenset[TopicPartition], release: Callable[[], None]) -> None:
        for partition in partitions:
            self._turns.pop(partition, None)
        tell(self._loop, self._events.revoked, partitions, release)


def _unstick(consumer: KafkaConsumer) -> None:
    """kafka-python forgets a join that it began because topics had changed, if the poll ends before the group
    answers: it is in the group, and never hears of its partitions. Then it has to join once more."""
    coordinator = consumer._coordinator
    if coordinator.rebalance_in_progress() and not coordinator.need_rejoin():
        coordinator.request_rejoin()
