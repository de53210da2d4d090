"""What kafka-python tells of the group's rebalances, passed on to the owner of the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.structs import TopicPartition

from headrace.broker.kafka.assignor import MembershipLost


class Owner(Protocol):
    """The thread that owns the consumer, as far as a listener goes."""

    def tell_assigned(self, partitions: frozenset[TopicPartition], member: str) -> None: ...

    def tell_revoked(self, partitions: frozenset[TopicPartition], release: Callable[[], None]) -> None: ...

    def look(self, consumer: KafkaConsumer) -> None: ...

    def look_away(self) -> None: ...


class RebalanceListener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no type hints
    """Runs on kafka-python's I/O thread, while the owner thread waits in `poll`."""

    def __init__(self, owner: Owner, consumer: KafkaConsumer, release_s: float) -> None:
        self._owner, self._consumer, self._release_s = owner, consumer, release_s
        self.lost = False
        self.closing = False  # all is said already

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        if self.lost:
            return
        # They stay paused until they are restored. The place keeps kafka-python from looking for one.
        self._consumer.pause(*assigned)
        for partition in assigned:
            self._consumer.seek(partition, 0)
        self._owner.tell_assigned(frozenset(assigned), self._consumer.group_metadata().member_id)
        self._owner.look(self._consumer)

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if self.closing:
            return
        self._owner.look(self._consumer)  # the new generation: what is flushed now must be fenced by it
        released = threading.Event()
        deadline = time.monotonic() + self._release_s
        self._owner.tell_revoked(frozenset(revoked), released.set)
        while not released.is_set() and time.monotonic() < deadline:
            await self._consumer._net.sleep(0.002)  # its one way to wait without stopping the I/O thread
        if not released.is_set():
            self._lose("what is revoked was not let go of in time")

    async def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        if not self.closing:
            self._lose("the partitions are lost")

    def _lose(self, why: str) -> None:
        """Raises, since kafka-python would join the group again at once, claiming what is lost."""
        self.lost = True
        self._owner.look_away()
        raise MembershipLost(why)
