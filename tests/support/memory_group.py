"""The consumer group: who is a member, who owns which partition, and since which generation.

Cooperative and sticky, as Kafka's `CooperativeStickyAssignor`: a partition that is to move stays with its
owner until that one has heard of it at its next poll and let go. Only a member that showed no sign of life
for its lease loses its partitions without being asked, and does not know it.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.message import DEFAULT_POOL, Lane
from tests.support.memory_clock import Clock
from tests.support.memory_topics import PartitionId


class Fencing(enum.Enum):
    """What the coordinator says to a commit."""

    ACCEPTED = "accepted"
    ILLEGAL_GENERATION = "illegal generation"
    UNKNOWN_MEMBER = "unknown member"


@dataclass(slots=True)
class Member:
    id: str
    lanes: tuple[Lane, ...]
    pool: str
    lease_ms: int
    seen_ms: int

    @property
    def lapses_ms(self) -> int:
        return self.seen_ms + self.lease_ms


@dataclass(frozen=True, slots=True)
class Assignment:
    """Answer to a poll: what the member owns as of `generation`."""

    generation: int
    partitions: frozenset[PartitionId]


class Group:
    """The coordinator's state. Nothing here waits: each method is one request to the coordinator."""

    def __init__(self, clock: Clock, partitions: Sequence[PartitionId]) -> None:
        self.generation = 0
        self._clock = clock
        self._partitions = tuple(partitions)
        self._members: dict[str, Member] = {}
        self._owner: dict[PartitionId, str] = {}
        self._target: dict[PartitionId, str] = {}
        self._ids = itertools.count(1)

    def add(self, partitions: Sequence[PartitionId]) -> None:
        """Topics that were made later, for another pool."""
        self._partitions += tuple(partitions)
        self._rebalance()

    def join(self, name: str, lanes: Sequence[Lane], lease_ms: int, pool: str = DEFAULT_POOL) -> str:
        """A new member; its id is new each time, also for a process that comes back."""
        self.expire()
        member = Member(f"{name}-{next(self._ids)}", tuple(lanes), pool, lease_ms, self._clock.now_ms())
        self._members[member.id] = member
        self._rebalance()
        return member.id

    def leave(self, member_id: str) -> None:
        """Its partitions move at once."""
        if self._members.pop(member_id, None) is not None:
            self._rebalance()

    def leaving(self, member_id: str) -> list[PartitionId]:
        """What a member will let go of at its next poll: it may still write there."""
        self.expire()
        return [p for p, owner in self._owner.items() if owner == member_id != self._target.get(p)]

    def poll(self, member_id: str) -> Assignment | None:
        """A sign of life, in which the member lets go of what is to move. None: it is no member any more."""
        self.expire()
        member = self._members.get(member_id)
        if member is None:
            return None
        member.seen_ms = self._clock.now_ms()
        for partition in self.leaving(member_id):
            del self._owner[partition]
        self._hand_out()
        owned = frozenset(p for p, owner in self._owner.items() if owner == member_id)
        return Assignment(self.generation, owned)

    def fencing(self, member_id: str, generation: int) -> Fencing:
        """Whether a commit under this membership is taken. (Kafka asks no more: not who owns what.)"""
        self.expire()
        if member_id not in self._members:
            return Fencing.UNKNOWN_MEMBER
        return Fencing.ACCEPTED if generation == self.generation else Fencing.ILLEGAL_GENERATION

    def expire(self) -> None:
        """Removes members whose session timed out."""
        now = self._clock.now_ms()
        lapsed = [m.id for m in self._members.values() if m.lapses_ms <= now]
        for member_id in lapsed:
            del self._members[member_id]
        if lapsed:
            self._rebalance()

    def next_lapse_ms(self) -> int | None:
        return min((m.lapses_ms for m in self._members.values()), default=None)

    def _rebalance(self) -> None:
        self.generation += 1
        self._owner = {p: m for p, m in self._owner.items() if m in self._members}
        self._target = dict(self._owner)
        for partition in self._partitions:
            takers = self._subscribed(partition)
            if takers and partition not in self._target:
                self._target[partition] = min(takers, key=self._load)
        self._even_out()
        self._hand_out()

    def _even_out(self) -> None:
        """Moves one partition at a time from the fullest to the emptiest that may have it."""
        for partition in self._partitions:
            takers = self._subscribed(partition)
            if takers and partition in self._target:
                least = min(takers, key=self._load)
                if self._load(self._target[partition]) - self._load(least) >= 2:
                    self._target[partition] = least

    def _hand_out(self) -> None:
        """Gives partitions that nobody owns to those they are meant for."""
        for partition, target in self._target.items():
            self._owner.setdefault(partition, target)

    def _subscribed(self, partition: PartitionId) -> list[str]:
        return [
            m.id for m in self._members.values() if partition.lane in m.lanes and partition.pool == m.pool
        ]

    def _load(self, member_id: str) -> int:
        return sum(target == member_id for target in self._target.values())
